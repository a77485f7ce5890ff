"""What an optimiser is told of each parameter."""

import copy
import pickle

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_s4 import S4, S4D, S4Model, param_groups


def by_name(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group for group in groups for parameter in group["params"]}


@pytest.fixture(params=[S4, S4D])
def layer(request):
    return request.param(4, 8)


def test_every_trainable_parameter_is_in_one_group(layer):
    layer.output_linear[0].bias.requires_grad_(False)
    listed = [id(parameter) for group in param_groups(layer) for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in layer.parameters() if parameter.requires_grad)


def test_state_spaces_learn_slowly_and_do_not_decay(layer):
    groups = by_name(layer, param_groups(layer, lr=1e-2, weight_decay=0.1))
    for name in ("ssm.inv_dt", "ssm.A_real", "ssm.A_imag", "ssm.B"):
        assert (groups[name]["lr"], groups[name]["weight_decay"]) == (1e-3, 0.0)
    assert (groups["ssm.C"]["lr"], groups["ssm.C"]["weight_decay"]) == (1e-2, 0.0)
    for name in ("D", "output_linear.0.weight"):
        assert (groups[name]["lr"], groups[name]["weight_decay"]) == (1e-2, 0.1)


def test_a_rate_given_to_the_layer_goes_before():
    layer = S4D(4, 8, lr={"dt": 5e-4}, wd=0.01)
    groups = by_name(layer, param_groups(layer, lr=1e-2, ssm_lr=2e-3))
    assert (groups["ssm.inv_dt"]["lr"], groups["ssm.inv_dt"]["weight_decay"]) == (5e-4, 0.01)
    assert groups["ssm.A_real"]["lr"] == 2e-3


def test_a_rate_of_zero_takes_parameters_out_of_training():
    layer = S4D(4, 8, lr=0.0)
    assert not any(name.startswith("ssm.") for name, _ in layer.named_parameters())
    assert "ssm.A_real" in layer.state_dict()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), lambda module: module.double()])
def test_copies_ask_for_the_same(layer, duplicate):
    model = torch.nn.Sequential(layer)
    wanted = {name: (group["lr"], group["weight_decay"]) for name, group in by_name(model, param_groups(model, lr=1, weight_decay=1)).items()}
    twin = duplicate(model)
    assert {name: (group["lr"], group["weight_decay"]) for name, group in by_name(twin, param_groups(twin, lr=1, weight_decay=1)).items()} == wanted


def test_norms_and_biases_can_be_spared_from_decay():
    model = S4Model(2, 3, 8, 1, d_state=8)
    groups = by_name(model, param_groups(model, weight_decay=0.1, decay_norms=False))
    assert groups["encoder.bias"]["weight_decay"] == 0.0
    assert groups["blocks.0.norm.inner.weight"]["weight_decay"] == 0.0
    assert groups["encoder.weight"]["weight_decay"] == 0.1


def test_groups_are_what_optimisers_take(layer):
    optimizer = torch.optim.AdamW(param_groups(layer, lr=1e-2), lr=1e-2)
    assert [group["name"] for group in optimizer.param_groups] == ["ordinary", "state space", "state space"]


def test_any_module_has_groups():
    assert len(param_groups(torch.nn.Linear(2, 2))) == 1


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"weight_decay": -1.0}, {"ssm_lr": float("nan")}])
def test_negative_rates_are_refused(options):
    with pytest.raises(ConfigError, match="at least 0"):
        param_groups(torch.nn.Linear(2, 2), **options)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ConfigError, match="Identity has no trainable parameter"):
        param_groups(torch.nn.Identity())
