"""S4 and S4D state-space layers, and the Cauchy and Vandermonde products that they are made of.

`S4` and `S4D` are layers over whole sequences, `ParaS4` and `ParaS4D` the same models as cells of pararnn. The functions that users of
lrnnx and state-spaces know are here under their names. Names load when they are first used, so that listing this plugin imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pararnn_s4.kernels.api import cauchy as cauchy

HOMES = {
    "DPLRSSM": "state_space.dplr",
    "DiagonalSSM": "state_space.diagonal",
    "DropoutNd": "modules.dropout",
    "LinearActivation": "modules.linear_activation",
    "ParaS4": "cells.dplr",
    "ParaS4D": "cells.diagonal",
    "S4": "layers.s4",
    "S4D": "layers.s4d",
    "S4Model": "layers.model",
    "build_cuda_kernels": "kernels.cuda_backend",
    "cauchy": "kernels.api",
    "cauchy_keops": "functional",
    "cauchy_naive": "functional",
    "combination": "initialisation.mixtures",
    "dplr": "initialisation.dplr",
    "from_lrnnx": "foreign.lrnnx",
    "from_state_spaces": "foreign.state_spaces",
    "from_state_spaces_s4d": "foreign.state_spaces_s4d",
    "get_cauchy_kernel": "functional",
    "get_vandermonde_kernel": "functional",
    "get_vandermonde_transpose_kernel": "functional",
    "init_dt": "initialisation.timescales",
    "init_ssm_dplr": "initialisation.layer",
    "inv_transform": "parameters.transforms",
    "log_vandermonde_keops": "functional",
    "log_vandermonde_naive": "functional",
    "log_vandermonde_transpose_keops": "functional",
    "log_vandermonde_transpose_naive": "functional",
    "nplr": "hippo.nplr",
    "param_groups": "layers.optimizer",
    "param_transform": "parameters.transforms",
    "power": "matrix_power",
    "process_dplr_params": "parameters.processing",
    "process_ssm_params": "parameters.processing",
    "rank_correction": "hippo.transition",
    "register_ssm_params": "parameters.registration",
    "ssm": "initialisation.mixtures",
    "transition": "hippo.transition",
    "vandermonde": "kernels.api",
    "vandermonde_transpose": "kernels.api",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The names of this package, those not yet loaded included."""
    return sorted({*globals(), *HOMES})
