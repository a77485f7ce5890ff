"""Batches without rows, as a last one may be."""

import pytest
import torch

from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.dplr import DPLRSSM

FORMS = {
    "diagonal": (DiagonalSSM, {}),
    "diagonal-real": (DiagonalSSM, {"is_real": True, "init": "diag-real", "disc": "bilinear"}),
    "powers": (DPLRSSM, {"channels": 2}),
    "cauchy": (DPLRSSM, {"method": "cauchy"}),
    "rank-two": (DPLRSSM, {"init": "legt", "rank": 2}),
}


@pytest.mark.parametrize("length", [1, 16, 300])
@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_has_empty_responses_states_and_steps(form, length):
    kind, options = FORMS[form]
    ssm = kind(4, d_state=8, **options)
    u, state = torch.zeros(0, 4, length), ssm.initial_state(0)
    assert ssm.response(state, length).shape == (0, ssm.channels, 4, length)
    for start in (None, state):
        for lengths in (None, torch.zeros(0, dtype=torch.long)):
            after = ssm.advance(u, start, lengths=lengths)
            assert (after.shape, after.dtype) == (state.shape, state.dtype)
    y, after = ssm.step(u[..., 0], state)
    assert (y.shape, after.shape) == ((0, ssm.channels, 4), state.shape)
