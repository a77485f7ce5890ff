"""Which replacements of a module's tensors and inner modules are noticed, and that edits in place are none."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from pararnn.module_tensors import ModuleTensors


def network():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Module())
    net[0].register_parameter("extra", None)
    net[2].inner = nn.Sigmoid()
    return net


def replace_parameter(net):
    net[0].weight = nn.Parameter(torch.zeros(3, 2))
    return "0.weight"


def replace_data(net):
    net[0].bias.data = torch.zeros(3)
    return "0.bias"


def replace_buffer(net):
    net[1].running_mean = torch.ones(3)
    return "1.running_mean"


def fill_none(net):
    net[0].extra = nn.Parameter(torch.zeros(1))
    return "0.extra"


def parametrise(net):
    parametrize.register_parametrization(net[0], "weight", nn.Tanh())
    return "0.weight"


def other_dtype(net):
    net.double()
    return "0.weight"


def replace_module(net):
    net[0] = nn.Linear(2, 3)
    return "0"


def replace_inner_module(net):
    net[2].inner = nn.Tanh()
    return "2.inner"


def append_module(net):
    net.append(nn.Tanh())
    return "3"


def remove_module(net):
    del net[2]
    return "2"


def swap_modules(net):
    net[0], net[2] = net[2], net[0]
    return "0"


def add_to_a_leaf(net):
    net[0].norm = nn.Tanh()
    return "0.norm"


@pytest.mark.parametrize("change", [replace_parameter, replace_data, replace_buffer, fill_none, parametrise, other_dtype])
def test_a_replaced_tensor_is_named(change):
    net = network()
    tensors = ModuleTensors(net)
    name = change(net)
    assert tensors.replaced() == name


@pytest.mark.parametrize("change", [replace_module, replace_inner_module, append_module, remove_module, swap_modules, add_to_a_leaf])
def test_a_replaced_module_is_named(change):
    net = network()
    tensors = ModuleTensors(net)
    name = change(net)
    assert tensors.replaced() == name


def test_edits_in_place_are_no_replacement():
    net = network()
    tensors = ModuleTensors(net)
    with torch.no_grad():
        net[0].weight.mul_(2)
        net[1].running_mean.add_(1)
    net.load_state_dict(network().state_dict())
    assert tensors.replaced() == ""
