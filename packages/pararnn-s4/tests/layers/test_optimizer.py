"""What an optimiser is told of each parameter."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils import parametrize, prune

from pararnn import ParaRNN
from pararnn.errors import ConfigError
from pararnn_s4 import DPLRSSM, S4, S4D, DiagonalSSM, ParaS4, ParaS4D, S4Model, param_groups


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


def rates(module):
    return {name: (group["lr"], group["weight_decay"]) for name, group in by_name(module, param_groups(module, lr=1.0, weight_decay=1.0)).items()}


def overwritten(module):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return module.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def swapped(module):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def assigned(module):
    module.load_state_dict({name: tensor.clone() for name, tensor in module.state_dict().items()}, assign=True)
    return module


REPLACEMENTS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "load_state_dict(assign=True)": assigned,
    "to_empty": lambda module: module.to("meta").to_empty(device="cpu"),
    "overwriting conversion": overwritten,
    "swapping conversion": swapped,
}
HOLDERS = {
    "S4": lambda: S4(4, 8, lr={"dt": 5e-4}),
    "S4D": lambda: S4D(4, 8),
    "S4Model": lambda: S4Model(2, 3, 8, 2, d_state=8),
    "DPLRSSM": lambda: DPLRSSM(4, d_state=8),
    "DiagonalSSM": lambda: DiagonalSSM(4, d_state=8),
    "ParaS4": lambda: ParaS4(4, d_state=8),
    "ParaRNN": lambda: ParaRNN(ParaS4D(4, d_state=8), num_layers=2),
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
@pytest.mark.parametrize("build", HOLDERS.values(), ids=HOLDERS)
def test_parameters_that_take_the_place_of_others_ask_for_the_same(build, replace):
    module = build()
    wanted = rates(module)
    assert (1e-3, 0.0) in wanted.values()
    assert rates(replace(module)) == wanted


def test_parameters_assigned_to_a_model_without_memory_ask_for_the_same():
    whole = S4Model(2, 3, 8, 1, d_state=8)
    with torch.device("meta"):
        model = S4Model(2, 3, 8, 1, d_state=8)
    model.load_state_dict(whole.state_dict(), assign=True)
    assert rates(model) == rates(whole)


@pytest.mark.parametrize("duplicate", [lambda module: module, copy.deepcopy, REPLACEMENTS["pickle"]], ids=["itself", "deepcopy", "pickle"])
def test_what_a_user_writes_on_a_parameter_goes_before(layer, duplicate):
    layer.ssm.B._optim = {"lr": 0.25}
    assert rates(duplicate(layer))["ssm.B"] == (0.25, 1.0)


def test_parameters_of_other_modules_may_ask_too():
    linear = torch.nn.Linear(2, 2)
    linear.bias._optim = {"lr": 0.25, "weight_decay": 0.5}
    assert rates(linear) == {"weight": (1.0, 1.0), "bias": (0.25, 0.5)}


@pytest.mark.parametrize("duplicate", [lambda module: module, assigned], ids=["itself", "assigned"])
def test_parameters_under_another_name_ask_for_the_same(layer, duplicate):
    prune.l1_unstructured(layer.ssm, "B", amount=0.3)
    parametrize.register_parametrization(layer.ssm, "A_real", torch.nn.Softplus(), unsafe=True)
    found = rates(duplicate(layer))
    assert found["ssm.B_orig"] == found["ssm.parametrizations.A_real.original"] == (1e-3, 0.0)


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
