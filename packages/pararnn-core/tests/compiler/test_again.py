"""Solves that are recognised: what they give is what the long way gives, and whatever has changed is seen.

In C where there is a compiler, in Triton where TRITON_INTERPRET is set (which takes a process of its own), and on a GPU.
"""

import copy
import gc
import os
import pickle
import weakref

import pytest
import torch
from by_address import launch_by_address
from reference_engine import ReferenceEngine
from torch import nn
from torch.func import functional_call
from toy_cells import Gate, Tanh, ToyCell, loop, packed_loop

from pararnn import BackendError, CellError, Dense, DifferentiationError, DTypeError, InputError, NewtonConfig, ParaRNN, ShapeError, newton_apply
from pararnn.compiler import catalogue
from pararnn.compiler.native import backend
from pararnn.selection import Request, clear_cache
from pararnn.solver import again, api

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
ENGINES = {
    "reference": pytest.param("reference", id="reference"),
    "native": pytest.param("native", id="native"),
    "triton": pytest.param("triton", id="triton"),
    "gpu": pytest.param("gpu", id="triton, gpu", marks=pytest.mark.gpu),
}
if backend.engine().reasons(Request.of("solve")):
    del ENGINES["native"]
if not INTERPRETED:
    del ENGINES["triton"]
everywhere = pytest.mark.parametrize("place", ENGINES.values(), indirect=True)
# Where it is all the same who computes.
anywhere = pytest.mark.parametrize("place", [ENGINES["reference"], ENGINES["gpu"]], indirect=True)
SCALE = 0.5


@pytest.fixture
def place(request, monkeypatch):
    """The name of a backend, and a device."""
    clear_cache()
    again.forget()
    torch.manual_seed(0)
    if request.param == "reference":
        made = ReferenceEngine()
        made.name = "native"
        monkeypatch.setattr(backend, "engine", lambda: made)
        monkeypatch.setattr(backend.solve, "engine", lambda: made)
    if request.param == "triton":
        from pararnn.compiler.gpu import backward, forward
        from pararnn.compiler.gpu.backend import engine

        # What was prepared for these launches is of no use to others, nor the other way round.
        for owner in (forward, backward, engine()):
            monkeypatch.setattr(owner, "_prepared", {})
        monkeypatch.setattr(backward.direct, "_known", {})
        launch_by_address(monkeypatch)
    yield {"gpu": ("triton", "cuda"), "triton": ("triton", "cpu")}.get(request.param, ("native", "cpu"))
    clear_cache()
    again.forget()


@pytest.fixture
def config(place):
    return NewtonConfig(backend=place[0])


@pytest.fixture
def recognised(monkeypatch):
    """Whether each solve so far was recognised."""
    seen, attempt = [], again.attempt

    def noting(*args, **options):
        found = attempt(*args, **options)
        seen.append(found[0] is not None)
        return found

    monkeypatch.setattr(api, "attempt", noting)
    return seen


class Squash(Tanh):
    """It begins on the device of its weights."""

    def initial_state(self, batch):
        return self.weight.new_zeros(batch, self.state_size)


class Settings(ToyCell):
    """A cell whose step reads settings of every kind."""

    slope = 0.2

    def __init__(self):
        super().__init__(3)
        self.weight = nn.Parameter(torch.rand(3, dtype=torch.float64))
        self.register_parameter("bias", None)
        self.register_buffer("offset", torch.rand(3, dtype=torch.float64))
        self.act, self.outer = nn.Hardtanh(-1.0, 1.0), nn.Sequential(nn.Tanh())
        self.gain, self.powers, self.options, self.shape = 0.5, [1, 2], {"leak": 0.1}, (1.0, 2.0)
        self.function, self.times = torch.tanh, 1
        self.project = nn.Linear(3, 3, dtype=torch.float64)

    def initial_state(self, batch):
        return self.offset.new_zeros(batch, self.state_size)

    def drive(self, x):
        return self.project(x)

    def mixed(self, x):
        return x * self.slope

    def step(self, state, drive):
        x = self.outer(self.act(self.weight * state + drive * self.gain)) + self.offset * self.shape[0]
        x = x if self.bias is None else x + self.bias
        for power in self.powers:
            x = x + self.options["leak"] * x**power
        return SCALE * self.function(self.mixed(x)) * self.times


def inputs(place, *, batch=2, length=9, features=3, requires_grad=False):
    x = torch.randn(batch, length, features, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(place[1])
    return x.requires_grad_(requires_grad)


def learnt(cell, x, config, **options):
    """`cell` after so many solves of the form of `x` that the next is recognised."""
    for _ in range(3):
        newton_apply(cell, x, config, **options)
    return cell


def assert_right(cell, x, config, h0=None):
    """States and gradients are those of the loop."""
    sources = [one for one in (x, h0, *cell.parameters()) if one is not None and one.requires_grad]
    states, truth = newton_apply(cell, x, config, h0=h0), loop(cell, x, h0)
    torch.testing.assert_close(states, truth, rtol=1e-9, atol=1e-9)
    if sources and states.requires_grad:
        ours, expected = (torch.autograd.grad(one.square().sum(), sources, allow_unused=True) for one in (states, truth))
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


CELLS = {
    "gate": lambda: Gate(3, 4),
    "tanh": lambda: Squash(3),
    "settings": Settings,
}


@everywhere
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("batch", "length"), [(2, 9), (1, 1), (5, 1), (1, 70)], ids=str)
def test_solves_that_are_recognised_give_the_same_bits(place, config, recognised, name, batch, length):
    cell = CELLS[name]().to(place[1])
    x = inputs(place, batch=batch, length=length, requires_grad=True)
    sources = [x, *cell.parameters()]
    states = [newton_apply(cell, x, config) for _ in range(5)]
    gradients = [torch.autograd.grad(one.square().sum(), sources, allow_unused=True) for one in states]
    assert recognised == [False, False, True, True, True]
    for one, gradient in zip(states[1:], gradients[1:], strict=True):
        torch.testing.assert_close(one, states[0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=0)
    assert_right(cell, x, config)


@everywhere
def test_the_record_of_a_recognised_solve_is_the_same(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, length=40)
    first, *_, last = (ParaRNN(cell, config=config).solve(x)[1][0] for _ in range(4))
    assert first.plan == last.plan
    assert (first.status, first.iterations, first.margin, first.backend) == (last.status, last.iterations, last.margin, last.backend)
    torch.testing.assert_close(last.final, first.final)
    assert last.explain() == first.explain()


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
    monkeypatch.setitem(globals(), "SCALE", 0.7)
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


@everywhere
def test_an_optimiser_goes_on_as_with_the_loop(place, config, recognised):
    ours, theirs = Gate(3, 4).to(place[1]), Gate(3, 4).to(place[1])
    theirs.load_state_dict(ours.state_dict())
    steps = [torch.optim.SGD(cell.parameters(), lr=0.1) for cell in (ours, theirs)]
    for turn in range(6):
        x = inputs(place) * (turn + 1)
        for cell, optimiser, solve in zip((ours, theirs), steps, (lambda cell, x: newton_apply(cell, x, config), loop), strict=True):
            optimiser.zero_grad()
            solve(cell, x).square().mean().backward()
            optimiser.step()
    assert sum(recognised) == 4
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


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


def starts(place):
    base = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(place[1])
    mirrored = torch.complex(base, base).conj().imag
    assert mirrored.is_neg()
    return {
        "plain": base,
        "channels apart": base.t().contiguous().t(),
        "one row for all": base[:1].expand(2, 4),
        "negated view": mirrored,
        "misaligned": torch.cat([base.new_zeros(1), base.reshape(-1)])[1:].reshape(2, 4),
        "single precision": base.float(),
        "parameter": nn.Parameter(base.clone()),
        "on the graph": base.clone().requires_grad_(),
    }


@everywhere
def test_initial_states_of_any_kind_follow_each_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, requires_grad=True)
    for _ in range(4):
        for h0 in (None, *starts(place).values()):
            assert_right(cell, x, config, h0)


@everywhere
def test_inputs_of_any_layout_follow_each_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    layouts = [
        x,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x[:1].expand(2, 9, 3),
        torch.cat([x, x], 2)[..., :3],
        torch.complex(x, x).conj().imag,
        torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].reshape(2, 9, 3),
    ]
    for _ in range(4):
        for one in layouts:
            assert_right(cell, one, config)


@everywhere
def test_drives_of_any_layout_follow_each_other(place, config):
    class Passing(Squash):
        def drive(self, x):
            return self.made

    cell, x = Passing(3).to(place[1]), inputs(place, requires_grad=True)
    layouts = [
        x * 1,
        (x * 1).transpose(0, 1).contiguous().transpose(0, 1),
        torch.complex(x, x).conj().imag,
        x[:, :, :1].expand(2, 9, 3),
        x[..., :1],
        x.flip(2),
    ]
    for _ in range(4):
        for one in layouts:
            cell.made = one
            states, truth = newton_apply(cell, x, config), loop(Squash(3).to(place[1]), one)
            torch.testing.assert_close(states, truth, rtol=1e-9, atol=1e-9)
            ours, expected = (torch.autograd.grad(found.square().sum(), x, retain_graph=True)[0] for found in (states, truth))
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@everywhere
def test_gradients_of_any_layout_follow_each_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, requires_grad=True)
    base = torch.randn(2, 9, 4, dtype=torch.float64).to(place[1])
    layouts = [
        base,
        base[:1].expand(2, 9, 4),
        base.transpose(1, 2).contiguous().transpose(1, 2),
        torch.complex(base, base).conj().imag,
        base[..., :1].expand(2, 9, 4),
    ]
    sources = [x, *cell.parameters()]
    for _ in range(4):
        for grad in layouts:
            ours, truth = (torch.autograd.grad(solve, sources, grad) for solve in (newton_apply(cell, x, config), loop(cell, x)))
            torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@everywhere
def test_sizes_and_modes_follow_each_other(place, config):
    cell = Gate(3, 4).to(place[1])
    for _ in range(4):
        assert newton_apply(cell, inputs(place, length=0), config).shape == (2, 0, 4)
        for batch, length in ((2, 9), (1, 1), (0, 5), (3, 9)):
            x = inputs(place, batch=batch, length=length)
            assert_right(cell, x, config)
            for mode in (torch.no_grad(), torch.inference_mode()):
                with mode:
                    states = newton_apply(cell, x, config)
                assert not states.requires_grad
                torch.testing.assert_close(states.clone(), loop(cell, x).detach(), rtol=1e-9, atol=1e-9)
            cell.requires_grad_(requires_grad=False)
            assert not newton_apply(cell, x, config).requires_grad
            cell.requires_grad_()
            cell.train(not cell.training)


@everywhere
def test_dtypes_follow_each_other(place, config):
    cell = Gate(3, 4).to(place[1])
    for _ in range(4):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            x = inputs(place).to(dtype)
            cell.to(dtype)
            torch.testing.assert_close(newton_apply(cell, x, config), loop(cell, x), rtol=tolerance, atol=tolerance)
            with torch.autocast(place[1], dtype=torch.bfloat16):
                states = newton_apply(cell, x, config)
            torch.testing.assert_close(states, loop(cell, x), rtol=0.1, atol=0.1)


@anywhere
def test_configurations_follow_each_other(place):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, length=40)
    configs = [NewtonConfig(backend=name, interval=interval) for name in (place[0], "torch") for interval in (5, 40)]
    for _ in range(4):
        for config in configs:
            (result,) = ParaRNN(cell, config=config).solve(x)[1]
            assert (result.backend, result.plan.interval) == (config.backend, config.interval)
            torch.testing.assert_close(result.states, loop(cell, x), rtol=1e-8, atol=1e-8)


@anywhere
def test_packed_sequences_and_guesses_between_are_honoured(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, batch=1, length=11)
    offsets = torch.tensor([0, 3, 3, 10, 11])
    for _ in range(4):
        assert_right(cell, x, config)
        torch.testing.assert_close(newton_apply(cell, x, config, cu_seqlens=offsets), packed_loop(cell, x, offsets.tolist()), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(newton_apply(cell, x, config, guess=x.new_zeros(1, 11, 4)), loop(cell, x), rtol=1e-9, atol=1e-9)
        with pytest.raises(ShapeError, match="guess"):
            newton_apply(cell, x, config, guess=x.new_zeros(1, 11, 5))


@everywhere
def test_errors_are_those_of_the_first_solve(place, config):
    def outcome(cell, **given):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            newton_apply(cell, given.pop("x", inputs(place)), config, **given)
        return type(caught.value), str(caught.value)

    bad = [
        {"h0": torch.zeros(3, 4, dtype=torch.float64, device=place[1])},
        {"h0": torch.zeros(2, 4, dtype=torch.complex128, device=place[1])},
        {"h0": [0.0]},
        {"x": inputs(place)[0]},
        {"x": inputs(place, features=5)},
        {"x": [1.0]},
    ]
    if place[1] == "cpu":
        bad += [{"x": inputs(place) / 0.0 * 0.0}, {"h0": torch.full((2, 4), torch.nan, dtype=torch.float64)}]
    fresh, known = Gate(3, 4).to(place[1]), Gate(3, 4).to(place[1])
    learnt(known, inputs(place), config)
    learnt(known, inputs(place), config, h0=torch.zeros(2, 4, dtype=torch.float64, device=place[1]))
    for one in bad:
        expected = outcome(copy.deepcopy(fresh), **one)
        assert outcome(known, **one) == expected
        assert issubclass(expected[0], (ShapeError, DTypeError, InputError))


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
def test_the_drive_runs_once_a_solve(place, config, recognised):
    cell, runs = Settings().to(place[1]), []
    cell.project.register_forward_hook(lambda module, args, output: runs.append(1))
    x = inputs(place)
    for turn in range(1, 9):
        newton_apply(cell, x[:, : 9 - turn // 4], config)
        if turn == 6:
            cell.gain = 0.9
        assert len(runs) == turn
    assert any(recognised)


@anywhere
def test_cells_of_one_class_are_told_apart(place, config, recognised):
    cells, x = [Gate(3, 4).to(place[1]) for _ in range(3)], inputs(place)
    cells[2].lift.data.mul_(3)
    for _ in range(4):
        for cell in (*cells, copy.deepcopy(cells[0])):
            assert_right(cell, x, config)
    assert sum(recognised) == 6


@anywhere
def test_a_cell_that_is_gone_leaves_nothing(place, config):
    cell, x = Settings().to(place[1]), inputs(place, requires_grad=True)
    cell.itself, cell.function = [cell], cell.mixed
    cell.act.register_forward_pre_hook(lambda module, args: None)
    plain = Settings().to(place[1])
    plain.act.owner = [plain]
    for one in (cell, plain):
        for _ in range(4):
            newton_apply(one, x, config).sum().backward()
    gone = [weakref.ref(cell), weakref.ref(plain), weakref.ref(plain.act), weakref.ref(plain.weight)]
    del cell, plain, one
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4
    assert not again._memory


@anywhere
def test_a_cell_can_be_pickled_and_copied(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    learnt(cell, x, config)
    for other in (pickle.loads(pickle.dumps(cell)), copy.deepcopy(cell)):
        torch.testing.assert_close(newton_apply(other, x, config), newton_apply(cell, x, config))


@anywhere
def test_forgetting_choices_or_programs_takes_the_long_way(place, config, recognised):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    for forget in (clear_cache, catalogue.forget):
        learnt(cell, x, config)
        newton_apply(cell, x, config)
        assert recognised[-1]
        forget()
        newton_apply(cell, x, config)
        assert not recognised[-1]


@anywhere
@pytest.mark.parametrize("name", ["lift", "recurrent"])
def test_what_comes_to_lie_on_another_device_is_refused(place, config, name):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    learnt(cell, x, config)
    setattr(cell, name, nn.Parameter(torch.zeros(4, dtype=torch.float64, device="meta")))
    for _ in range(3):
        with pytest.raises(BackendError, match="is on meta"):
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


@anywhere
def test_transforms_are_left_to_the_long_way(place):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, length=1100)
    config = NewtonConfig()
    for _ in range(3):
        learnt(cell, x, config)
        _, tangent = torch.func.jvp(lambda x: newton_apply(cell, x, config), (x,), (torch.ones_like(x),))
        _, truth = torch.func.jvp(lambda x: loop(cell, x), (x,), (torch.ones_like(x),))
        torch.testing.assert_close(tangent, truth, rtol=1e-8, atol=1e-8)


@anywhere
def test_a_graph_is_used_as_any_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, requires_grad=True)
    learnt(cell, x, config)
    states = newton_apply(cell, x, config)
    first, second = (torch.autograd.grad(states.sum(), x, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(newton_apply(cell, x, config).sum(), x, create_graph=True)
    with pytest.raises(DifferentiationError, match="second derivatives"):
        gradient.sum().backward()
    states = newton_apply(cell, x, config)
    with torch.no_grad():
        cell.lift.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.gpu
def test_single_steps_on_a_gpu_are_recognised(recognised):
    again.forget()
    layer = ParaRNN(Gate(3, 4)).cuda()
    x, states = inputs(("triton", "cuda")), torch.rand(2, 4, dtype=torch.float64, device="cuda")
    with torch.no_grad():
        found = [layer.step(x[:, 0], states) for _ in range(4)]
    assert recognised == [False, False, True, True]
    truth = loop(layer.layers[0], x[:, :1], states)[:, 0].detach()
    for output, (state,) in found:
        torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state, truth, rtol=1e-9, atol=1e-9)
