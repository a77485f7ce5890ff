"""Models on the meta device and under a tracer: shapes alone, and no check may ask for numbers."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.dplr import DPLRSSM

FORMS = {
    "diagonal": (DiagonalSSM, {}),
    "diagonal-bilinear": (DiagonalSSM, {"disc": "bilinear"}),
    "diagonal-real": (DiagonalSSM, {"is_real": True, "init": "diag-real"}),
    "powers": (DPLRSSM, {}),
    "cauchy": (DPLRSSM, {"method": "cauchy"}),
    "all-transforms": (DPLRSSM, {"init": "dplr-lin", "normalize": True, "dt_transform": "sigmoid", "real_transform": "sigmoid", "real_scale": 0.5}),
}


@pytest.mark.parametrize("mode", [FakeTensorMode, lambda: torch.device("meta")], ids=["fake", "meta"])
@pytest.mark.parametrize("form", FORMS)
def test_models_are_built_and_asked_without_numbers(form, mode):
    kind, options = FORMS[form]
    with mode():
        ssm = kind(4, d_state=8, **options)
        u, state = torch.zeros(2, 4, 9), ssm.initial_state(2)
        assert ssm(9).shape == (1, 4, 9)
        assert ssm.response(state, 9).shape == (2, 1, 4, 9)
        assert ssm.advance(u, state).shape == state.shape
        assert ssm.step(u[..., 0], state)[0].shape == (2, 1, 4)
        ssm(9).sum().backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in ssm.parameters())
