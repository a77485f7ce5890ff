"""Arguments of lrnnx and state-spaces that decide where training starts, or nothing at all: trained parameters do not depend on them."""

STARTS = frozenset(
    {
        "init",
        "measure",
        "deterministic",
        "dt_min",
        "dt_max",
        "real_random",
        "real_scale",
        "imag_random",
        "imag_scale",
        "B_random",
        "B_init",
        "B_scale",
        "P_scale",
        "B_clip",
        "normalize",
        "diagonalize_precision",
        "verbose",
        "initializer",
        "weight_norm",
        "backend",
    }
)
