"""Models of every form, and the plainest way to run them: one step after the other by the model's own step."""

import torch
from torch import nn

from pararnn_s4 import DPLRSSM, DiagonalSSM, ParaS4, ParaS4D

FORMS = {
    "zoh": (DiagonalSSM, {}),
    "bilinear-two-channels": (DiagonalSSM, {"disc": "bilinear", "channels": 2, "n_ssm": 1}),
    "diagonal-real": (DiagonalSSM, {"is_real": True, "init": "diag-real", "d_state": 5}),
    "diagonal-untied": (DiagonalSSM, {"dt_tie": False}),
    "legs": (DPLRSSM, {}),
    "legt-two-channels": (DPLRSSM, {"init": "legt", "rank": 2, "channels": 2}),
    "fout-shared": (DPLRSSM, {"init": "fout", "n_ssm": 1}),
    "dplr-real": (DPLRSSM, {"is_real": True, "init": "dplr-real", "rank": 3, "d_state": 5}),
}
D_MODEL = 3


def make_ssm(name, dtype=torch.float64, **more):
    kind, options = FORMS[name]
    torch.manual_seed(0)
    return kind(D_MODEL, **({"d_state": 8, "dt_min": 0.01, "dtype": dtype} | options | more))


def cell_around(ssm, **options):
    skip = nn.Parameter(torch.randn(ssm.channels, ssm.d_model, dtype=ssm.dtype))
    return (ParaS4D if isinstance(ssm, DiagonalSSM) else ParaS4)(ssm.d_model, ssm=ssm, D=skip, **options)


def loop(ssm, skip, u, state, rate=1.0):
    """Outputs `(batch, channels, d_model, length)` and the last state, for `u` `(batch, d_model, length)`."""
    outputs = []
    for sample in u.unbind(-1):
        y, state = ssm.step(sample, state, rate=rate)
        outputs.append(y + skip * sample.unsqueeze(1))
    return torch.stack(outputs, -1), state


def inputs_and_state(ssm, batch, length):
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(batch, ssm.d_model, length, dtype=ssm.dtype, generator=generator)
    return u, torch.randn(batch, ssm.d_model, ssm.state_size, dtype=ssm.state_dtype, generator=generator)


def flat(y):
    """Outputs `(batch, channels, d_model, length)` as a cell gives them, `(batch, length, channels * d_model)`."""
    return y.flatten(1, 2).mT
