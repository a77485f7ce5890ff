"""State matrices by name: one kind for all copies, or a mixture of kinds."""
# ruff: noqa: N803, N806 -- A, B, H, N, P, R, S, V are the names of the literature and of the reference functions.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Complex
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.hippo.nplr import nplr
from pararnn_s4.hippo.transition import MEASURES
from pararnn_s4.initialisation.dplr import dplr
from pararnn_s4.initialisation.spectra import INITS

combinations = {
    "hippo": ["legs", "fourier"],
    "diag": ["diag-inv", "diag-lin"],
    "all": ["legs", "fourier", "diag-inv", "diag-lin"],
}

SHARED = frozenset({"dtype", "device", "B_clip", "gauge"})
NPLR_ARGUMENTS = SHARED | {"diagonalize_precision"}
DPLR_ARGUMENTS = SHARED | {
    "real_random",
    "real_scale",
    "imag_random",
    "imag_scale",
    "B_random",
    "B_init",
    "B_scale",
    "P_scale",
    "normalize",
}
DIAG_ARGUMENTS = DPLR_ARGUMENTS - {"P_scale"}
ARGUMENTS = NPLR_ARGUMENTS | DPLR_ARGUMENTS


def ssm(
    init: str, N: int, R: int, H: int, *, generator: torch.Generator | None = None, **ssm_args: Any
) -> tuple[Complex[Tensor, "H half"], Complex[Tensor, "R H half"], Complex[Tensor, "H half"], Complex[Tensor, "H N half"]]:
    """A, P, B, V of `H` systems of one kind: a measure (`legs`, `legt`, `fourier`, `fout`), `dplr-INIT` or `diag-INIT`.

    `INIT` is one of `dplr`; alone, `dplr` and `diag` stand for `dplr-hippo` and `diag-hippo`. `diag` has a P of zeros. `ssm_args` are the
    arguments of `nplr` or `dplr`; `generator` is for what is random.

    Raises:
        ConfigError: a name that does not parse, an argument that this kind has no use for, and what `nplr` and `dplr` refuse.
    """
    family, name = _parse(init)
    accepted = _accepted(family)
    extra = sorted(set(ssm_args) - accepted)
    if extra:
        raise ConfigError(f"init {init!r} has no use for {', '.join(extra)}; it takes {', '.join(sorted(accepted))}")
    if H < 1:
        raise ConfigError(f"{H} copies of {init!r} are asked for; there must be at least one")
    if family == "nplr":
        A, P, B, V = nplr(name, N, R, **ssm_args)
        return A.repeat(H, 1), P.unsqueeze(1).repeat(1, H, 1), B.repeat(H, 1), V.repeat(H, 1, 1)
    if family == "diag":
        ssm_args["P_scale"] = 0.0
    return dplr(name, N, R, H, generator=generator, **ssm_args)


def combination(
    inits: str | Sequence[str], N: int, R: int, S: int, *, generator: torch.Generator | None = None, **ssm_args: Any
) -> tuple[Complex[Tensor, "S half"], Complex[Tensor, "R S half"], Complex[Tensor, "S half"], Complex[Tensor, "S N half"]]:
    """A, P, B, V of `S` systems, shared out evenly over kinds in the order of `inits`.

    `inits` is a kind of `ssm`, a sequence of kinds, or a mixture: `hippo` (legs, fourier), `diag` (diag-inv, diag-lin), `all` (these
    four). An argument goes to the kinds that take it.

    Raises:
        ConfigError: `S` is no multiple of the number of kinds, an argument that none of the kinds takes, and what `ssm` refuses.
    """
    names = _kinds(inits)
    if S < 1 or S % len(names):
        raise ConfigError(
            f"{S} systems cannot be shared out evenly over {len(names)} initialisations ({', '.join(names)}); "
            f"n_ssm must be a positive multiple of {len(names)}"
        )
    accepted = [_accepted(_parse(name)[0]) for name in names]
    extra = sorted(set(ssm_args) - arguments(names))
    if extra:
        raise ConfigError(f"none of {', '.join(names)} has a use for {', '.join(extra)}")
    parts = [
        ssm(name, N, R, S // len(names), generator=generator, **{key: value for key, value in ssm_args.items() if key in known})
        for name, known in zip(names, accepted, strict=True)
    ]
    A, P, B, V = zip(*parts, strict=True)
    return torch.cat(A, dim=0), torch.cat(P, dim=1), torch.cat(B, dim=0), torch.cat(V, dim=0)


def arguments(inits: str | Sequence[str]) -> frozenset[str]:
    """The names of the `ssm_args` that `combination` takes for `inits`.

    Raises:
        ConfigError: `inits` is empty, or has a name that does not parse.
    """
    return frozenset[str]().union(*(_accepted(_parse(name)[0]) for name in _kinds(inits)))


def _kinds(inits: str | Sequence[str]) -> list[str]:
    names = list(combinations.get(inits, [inits])) if isinstance(inits, str) else list(inits)
    if not names:
        raise ConfigError("the list of initialisations is empty; name at least one, such as 'legs'")
    return names


def _parse(init: str) -> tuple[str, str]:
    """Family and name; the whole of `init` must be understood."""
    if init in MEASURES:
        return "nplr", init
    family, dash, name = init.partition("-")
    if family in ("diag", "dplr") and (name in INITS if dash else True):
        return family, name or "hippo"
    raise ConfigError(
        f"initialisation {init!r} is unknown; choose a measure ({', '.join(MEASURES)}), or 'diag-' or 'dplr-' and one of {', '.join(INITS)}, "
        f"or for `combination` one of {', '.join(combinations)}"
    )


def _accepted(family: str) -> frozenset[str]:
    return {"nplr": NPLR_ARGUMENTS, "dplr": DPLR_ARGUMENTS, "diag": DIAG_ARGUMENTS}[family]
