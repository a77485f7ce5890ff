"""Whatever has changed since a solve was remembered is seen by the next one."""

import copy

import pytest
import recognised_solves
import torch
from recognised_solves import Settings, Squash, anywhere, assert_right, inputs, learnt
from torch import nn
from torch.func import functional_call
from toy_cells import Gate, loop

from pararnn import CellError, Dense, NewtonConfig, ParaRNN, newton_apply

CHANGES = {
    "number": lambda cell: setattr(cell, "gain", 0.6),
    "int for float": lambda cell: setattr(cell, "times", 2.5),
    "item of a list": lambda cell: cell.powers.append(3),
    "item of a dict": lambda cell: cell.options.update(leak=0.3),
    "tuple": lambda cell: setattr(cell, "shape", (1.5, 2.0)),
    "function": lambda cell: setattr(cell, "function", torch.sin),
    "function of one's own": lambda cell: setattr(cell, "function", lambda x: x * 2),
    "setting of a layer": lambda cell: setattr(cell.act, "max_val", 0.1),
    "layer": lambda cell: setattr(cell, "act", nn.Tanh()),
    "layer in a container": lambda cell: cell.outer.__setitem__(0, nn.Sigmoid()),
    "layer that is added": lambda cell: cell.outer.append(nn.Sigmoid()),
    "parameter where there was none": lambda cell: setattr(cell, "bias", nn.Parameter(torch.rand(3, dtype=torch.float64, device=cell.weight.device))),
    "shape of a parameter": lambda cell: setattr(cell, "weight", nn.Parameter(torch.tensor(0.3, dtype=torch.float64, device=cell.weight.device))),
    "another parameter": lambda cell: setattr(cell, "weight", nn.Parameter(torch.rand(3, dtype=torch.float64, device=cell.weight.device))),
    "buffer": lambda cell: setattr(cell, "offset", torch.rand(3, dtype=torch.float64, device=cell.weight.device)),
    "data of a parameter": lambda cell: setattr(cell.weight, "data", torch.rand(3, dtype=torch.float64, device=cell.weight.device)),
    "attribute that hides one of the class": lambda cell: setattr(cell, "slope", 0.9),
    "method on the instance": lambda cell: setattr(cell, "mixed", lambda x: x),
    "step on the instance": lambda cell: setattr(cell, "step", lambda state, drive: torch.tanh(state + drive)),
    "drive on the instance": lambda cell: setattr(cell, "drive", lambda x: cell.project(x) * 2),
    "start": lambda cell: setattr(cell, "initial_state", lambda batch: torch.ones(batch, 3, dtype=torch.float64, device=cell.weight.device)),
    "hook in the step": lambda cell: cell.act.register_forward_hook(lambda module, args, output: output * 2),
    "hook in the drive": lambda cell: cell.project.register_forward_hook(lambda module, args, output: output * 2),
    "weights of the drive": lambda cell: cell.project.weight.data.mul_(2),
    "class": lambda cell: setattr(cell, "__class__", type("Other", (Settings,), {"mixed": lambda self, x: x})),
    "structure": lambda cell: setattr(cell, "structure", Dense),
    "inexact Jacobian": lambda cell: setattr(cell, "exact_jacobian", False),
}


@anywhere
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(place, name):
    # What engines do not compile is for PyTorch.
    config = NewtonConfig(backend="auto" if name in ("structure", "inexact Jacobian") else place[0], interval=9)
    x = torch.cat([inputs(place, length=9)] * 120, 1) if config.backend == "auto" and place[1] == "cpu" else inputs(place)
    cell = learnt(Settings().to(place[1]), x, config)
    CHANGES[name](cell)
    for _ in range(4):
        torch.testing.assert_close(newton_apply(cell, x, config), loop(cell, x), rtol=1e-8, atol=1e-8)


@anywhere
@pytest.mark.parametrize(("owner", "name", "value"), [(Settings, "slope", 0.8), (Settings, "mixed", lambda self, x: x)], ids=["number", "method"])
def test_a_change_of_the_class_is_seen(place, config, owner, name, value, monkeypatch):
    cell, x = Settings().to(place[1]), inputs(place)
    learnt(cell, x, config)
    monkeypatch.setattr(owner, name, value)
    assert_right(cell, x, config)


@anywhere
def test_a_change_of_a_global_is_seen(place, config, monkeypatch):
    cell, x = Settings().to(place[1]), inputs(place)
    learnt(cell, x, config)
    monkeypatch.setattr(recognised_solves, "SCALE", 0.7)
    assert_right(cell, x, config)


@anywhere
def test_what_the_drive_changes_is_seen(place, config):
    class Drifting(Squash):
        def drive(self, x):
            self.bias += 0.1
            return x

    cell, x = Drifting(3).to(place[1]), inputs(place)
    for turn in range(1, 6):
        states = newton_apply(cell, x, config)
        assert cell.bias == pytest.approx(0.1 * turn)
        torch.testing.assert_close(states, loop(Squash(3, bias=cell.bias).to(place[1]), x), rtol=1e-9, atol=1e-9)


@anywhere
def test_parameters_that_are_passed_to_a_functional_call_are_taken(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    layer = ParaRNN(cell, config=config)
    learnt(cell, x, config)
    fresh = {name: (0.5 * one.detach()).requires_grad_() for name, one in layer.named_parameters()}
    states = functional_call(layer, fresh, (x,))
    other = copy.deepcopy(cell)
    other.load_state_dict({name.removeprefix("layers.0."): one for name, one in fresh.items()})
    truth = loop(other, x)
    torch.testing.assert_close(states, truth, rtol=1e-9, atol=1e-9)
    ours = torch.autograd.grad(states.sum(), list(fresh.values()))
    torch.testing.assert_close(ours, torch.autograd.grad(truth.sum(), list(other.parameters())), rtol=1e-8, atol=1e-8)


@anywhere
@pytest.mark.parametrize("name", ["drive", "step", "initial_state", "readout", "state_size", "structure"])
def test_a_cell_that_loses_a_member_is_told_so(place, config, name):
    kind = type("Losing", (), {})

    class Losing(Gate):
        pass

    cell, x = Losing(3, 4).to(place[1]), inputs(place)
    learnt(cell, x, config)
    if name == "state_size":
        del cell.state_size
    else:
        cell.__class__ = type(kind.__name__, (nn.Module,), {member: getattr(Losing, member) for member in dir(Gate) if member in MEMBERS - {name}})
    with pytest.raises(CellError, match=f"lacks {name}"):
        newton_apply(cell, x, config)


MEMBERS = {"drive", "step", "initial_state", "readout", "structure"}


@anywhere
@pytest.mark.parametrize("name", ["drive", "step", "initial_state", "readout", "structure"])
def test_a_class_that_loses_a_member_is_told_so(place, config, name):
    losing = type("Losing", (nn.Module,), {member: getattr(Gate, member) for member in MEMBERS})
    cell, x = losing(), inputs(place)
    source = Gate(3, 4).to(place[1])
    cell.state_size, cell.W = 4, source.W
    for parameter in ("recurrent", "gain", "lift"):
        cell.register_parameter(parameter, getattr(source, parameter))
    learnt(cell, x, config)
    delattr(losing, name)
    with pytest.raises(CellError, match=f"lacks {name}"):
        newton_apply(cell, x, config)


@anywhere
def test_what_a_cell_comes_to_claim_is_heeded(place):
    config = NewtonConfig(backend=place[0])
    cell, x = Squash(3).to(place[1]), inputs(place)
    for claim, value in (("is_linear", True), ("exact_jacobian", False), ("structure", Dense)):
        learnt(cell, x, config)
        setattr(cell, claim, value)
        with pytest.raises(Exception, match="cannot serve"):
            newton_apply(cell, x, config)
        delattr(cell, claim)
    learnt(cell, x, config)
    asked = []
    cell.guess = lambda drive, initial: asked.append(1)
    newton_apply(cell, x, config)
    del cell.guess
    learnt(cell, x, config)
    cell.newton_iters = lambda length: asked.append(length)
    for _ in range(4):
        newton_apply(cell, x, config)
    assert asked == [1, 9, 9, 9, 9]


@anywhere
@pytest.mark.parametrize("name", ["lift", "recurrent"])
def test_what_comes_to_lie_on_another_device_is_refused(place, config, name):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    learnt(cell, x, config)
    setattr(cell, name, nn.Parameter(torch.zeros(4, dtype=torch.float64, device="meta")))
    for _ in range(3):
        with pytest.raises(CellError, match=f"{name} is on meta, and the states are on {place[1]}.*: bring them together"):
            newton_apply(cell, x, config)


@pytest.mark.gpu
def test_a_number_that_stays_on_the_cpu_is_read_by_pytorch():
    cell, x = Gate(3, 4).cuda(), inputs(("triton", "cuda"))
    cell.gain = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))
    cell.initial_state = lambda batch: x.new_zeros(batch, 4)
    for _ in range(3):
        (result,) = ParaRNN(cell).solve(x)[1]
        assert result.backend == "torch"
        torch.testing.assert_close(result.states, loop(cell, x), rtol=1e-8, atol=1e-8)
