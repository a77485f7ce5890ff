"""What optimisers find on a loaded layer."""

import pytest
import torch

from pararnn_s4 import param_groups


@pytest.mark.parametrize("name", ["lrnnx_s4_legs", "lrnnx_s4d_real", "state_spaces_fout_longer", "state_spaces_diag_band", "state_spaces_s4d"])
def test_a_loaded_layer_trains(golden, name):
    case = golden(name)
    layer = case.layer().train()
    optimizer = torch.optim.AdamW(param_groups(layer, lr=1e-2), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = layer(case.x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_b_of_the_minimal_layer_is_one_and_stays_so(golden):
    ssm = golden("state_spaces_s4d").layer().ssm
    assert "B" not in dict(ssm.named_parameters())
    assert torch.equal(torch.view_as_complex(ssm.B), torch.ones(1, 3, 4, dtype=torch.cfloat))


def test_weight_decay_of_c_is_left_to_the_optimiser_as_in_state_spaces(golden):
    ssm = golden("state_spaces_legs").layer().ssm
    assert {name: dict(parameter._optim) for name, parameter in ssm.named_parameters()} == {
        "C": {},
        **{name: {"weight_decay": 0.0} for name in ("inv_dt", "B", "A_real", "A_imag")},
        "P": {"weight_decay": 0.0},
    }


def test_learning_rates_that_were_asked_of_lrnnx_are_kept(golden):
    case = golden("lrnnx_s4_state")
    assert case.arguments["lr"] == 0.001
    assert case.layer().ssm.inv_dt._optim == {"lr": 0.001, "weight_decay": 0.0}
