"""Leaves and parameters with several numbers a channel: every way to take them apart, on every engine, with one gradient for each tensor.

Engines solve what the loop solves one step after the other, in double precision. Triton is tried on the CPU where TRITON_INTERPRET is set.
"""

import os
import random

import pytest
import torch
from reference_engine import ReferenceEngine
from torch import nn
from torch.nn import functional as F
from toy_cells import ToyCell, loop, packed_loop, weighted_sum

from pararnn import DifferentiationError, NewtonConfig, ParaRNN
from pararnn.compiler import catalogue, columns, ops, solving
from pararnn.compiler import reference as reference_of
from pararnn.compiler.native import backend as native
from pararnn.compiler.tracing import trace
from pararnn.errors import CompilationError
from pararnn.selection import Request, clear_cache
from pararnn.solver.api import cell_problem

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def reference():
    return ReferenceEngine()


def triton():
    pytest.importorskip("triton")
    from pararnn.compiler.gpu.backend import engine

    return engine()


def c_engine():
    if reasons := native.engine().reasons(Request.of("solve", device="cpu")):
        pytest.skip(" ".join(reasons))
    return native.engine()


ENGINES = [pytest.param((reference, "cpu"), id="reference"), pytest.param((c_engine, "cpu"), id="native")]
if INTERPRETED:
    ENGINES.append(pytest.param((triton, "cpu"), id="triton"))
ENGINES.append(pytest.param((triton, "cuda"), id="triton gpu", marks=pytest.mark.gpu))
everywhere = pytest.mark.parametrize("place", ENGINES)


class Wide(ToyCell):
    """A cell whose `step` is `body(cell, state, drive)`; `bias` has `parts` numbers a channel."""

    def __init__(self, body, state_size, parts=2, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.body, self.parts = body, parts
        self.bias = nn.Parameter(torch.randn(parts * state_size, dtype=torch.float64).to(dtype))
        self.recurrent = nn.Parameter(torch.randn(state_size, dtype=torch.float64).to(dtype) / 2)

    def initial_state(self, batch):
        return self.recurrent.new_zeros(batch, self.state_size)

    def step(self, state, drive):
        return self.body(self, state, drive)


def mixed(state, update, candidate):
    return torch.lerp(state, torch.tanh(candidate + 0.5 * state), torch.sigmoid(update))


def solved(place, cell, x, *, h0=None, offsets=None, interval="auto"):
    """The result of an engine, without the choice of a backend."""
    engine = place[0]()
    config = NewtonConfig(interval=interval)
    problem = cell_problem(cell, x, config, h0=h0, cu_seqlens=None if offsets is None else torch.tensor(offsets))
    found = catalogue.compiled(problem)
    assert isinstance(found, catalogue.Compiled), found
    return solving.solve_compiled(engine, found, problem, config)


def assert_the_loop_is_met(place, cell, x, h0=None, *, interval="auto", offsets=None, rtol=1e-9, atol=1e-9):
    """States and the gradients by inputs, initial state and parameters; those that the loop has none of are zero or none."""
    cell, x = cell.to(place[1]), x.detach().to(place[1]).requires_grad_()
    h0 = None if h0 is None else h0.detach().to(place[1]).requires_grad_()
    sources = [x, *([] if h0 is None else [h0]), *cell.parameters()]
    states = solved(place, cell, x, h0=h0, offsets=offsets, interval=interval).states
    exact = [source.detach().double().requires_grad_() for source in sources]
    double = Wide(cell.body, cell.state_size, cell.parts).to(place[1])
    double.bias, double.recurrent = nn.Parameter(exact[-2].detach()), nn.Parameter(exact[-1].detach())
    exact[-2:] = [double.bias, double.recurrent]
    start = exact[1] if h0 is not None else double.initial_state(1 if offsets is None else len(offsets) - 1)
    truth = loop(double, exact[0], start) if offsets is None else packed_loop(double, exact[0], offsets, start)
    torch.testing.assert_close(states.double(), truth, rtol=rtol, atol=atol)
    found, wanted = (
        torch.autograd.grad(weighted_sum(one.double().cpu()), given, allow_unused=True) for one, given in ((states, sources), (truth, exact))
    )
    for mine, theirs, source in zip(found, wanted, sources, strict=True):
        if theirs is None:
            assert mine is None or not mine.any()
        else:
            assert (mine.shape, mine.dtype) == (source.shape, source.dtype)
            scale = max(1.0, float(theirs.abs().max()))
            torch.testing.assert_close(mine.double(), theirs, rtol=30 * rtol, atol=30 * atol * scale)


def _in_place(gates, d):
    fresh = gates * 1.0
    fresh[..., :d].mul_(2.0)
    return fresh.add_(0.5).chunk(2, -1)


def _written(gates, d):
    fresh = torch.zeros_like(gates).copy_(gates)
    return fresh.neg_().chunk(2, -1)


WAYS = {
    "chunk": lambda g, d: g.chunk(2, -1),
    "split": lambda g, d: g.split(d, -1),
    "split sizes": lambda g, d: torch.split(g, [d, d], dim=-1),
    "tensor_split": lambda g, d: torch.tensor_split(g, 2, dim=-1),
    "slices": lambda g, d: (g[..., :d], g[..., d:]),
    "slices of two dimensions": lambda g, d: (g[:, :d], g[:, -d:]),
    "narrow": lambda g, d: (g.narrow(-1, 0, d), g.narrow(-1, d, d)),
    "unflatten": lambda g, d: g.unflatten(-1, (2, -1)).unbind(-2),
    "view": lambda g, d: g.view(*g.shape[:-1], 2, d).unbind(-2),
    "select": lambda g, d: (g.reshape(-1, 2, d)[:, 0], g.reshape(-1, 2, d).select(1, 1)),
    "transposed": lambda g, d: g.unflatten(-1, (2, d)).movedim(-2, 0).unbind(0),
    "swapped": lambda g, d: g.chunk(2, -1)[::-1],
    "negated before": lambda g, d: (-g).chunk(2, -1),
    "squashed before": lambda g, d: torch.sigmoid(2 * g - 0.5).chunk(2, -1),
    "joined and cut again": lambda g, d: torch.cat(g.chunk(2, -1)[::-1], -1).split(d, -1),
    "stacked and cut again": lambda g, d: torch.stack(g.chunk(2, -1), 1).unbind(1),
    "contiguous": lambda g, d: g.clone().contiguous().chunk(2, -1),
    "one twice": lambda g, d: (g[..., :d], g[..., :d]),
    "the last alone": lambda g, d: (g[..., d:], 0.3 * g[..., d:]),
    "sum of both": lambda g, d: (g.unflatten(-1, (2, d)).sum(-2), g[..., :d]),
    "in place": _in_place,
    "written": _written,
    "where": lambda g, d: torch.where(g > 0, g, 0.1 * g).chunk(2, -1),
    "scaled by a part": lambda g, d: (g.unflatten(-1, (2, d)) * g[..., None, :d]).unbind(-2),
    "no gradient of one": lambda g, d: (g[..., :d].detach(), g[..., d:]),
    "negative step": lambda g, d: (F.softplus(g.unflatten(-1, (2, d)))[..., 1, :], g.unflatten(-1, (2, d))[..., 0, :]),
}


@pytest.mark.parametrize("size", [1, 2, 5], ids="D{}".format)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_take_gates_apart_gives_the_states_and_gradients_of_the_loop(way, size):
    torch.manual_seed(0)
    cell = Wide(lambda cell, state, gates: mixed(state, *WAYS[way](gates, state.shape[-1])), size)
    assert_the_loop_is_met((reference, "cpu"), cell, torch.randn(2, 4, 2 * size, dtype=torch.float64), torch.randn(2, size, dtype=torch.float64))


def with_bias(cell, state, gates):
    update, candidate = (gates + cell.bias).chunk(2, dim=-1)
    return torch.lerp(state, torch.tanh(candidate + cell.recurrent * state), torch.sigmoid(update))


def gru(cell, state, gates):
    update, reset, candidate = gates.chunk(3, -1)
    of_update, of_reset, of_candidate = cell.bias.chunk(3)
    update, reset = torch.sigmoid(update + of_update * state), torch.sigmoid(reset + of_reset * state)
    return torch.lerp(state, torch.tanh(candidate + of_candidate * (reset * state)), update)


def lstm_like(cell, state, gates):
    squashed = torch.sigmoid(gates + cell.bias)
    forget, enter, _, leave = squashed.chunk(4, -1)
    return leave * torch.tanh(forget * state + enter * torch.tanh(cell.recurrent * state))


def in_part(cell, state, gates):
    # The third part of the leaf, and the second of the bias, are never read.
    return mixed(state, gates[..., : state.shape[-1]] + cell.bias[: state.shape[-1]], gates.split(state.shape[-1], -1)[1])


CELLS = {"bias": (with_bias, 2), "gru": (gru, 3), "lstm": (lstm_like, 4), "in part": (in_part, 3)}
SHAPES = [(2, 19, 5), (3, 1, 1), (1, 23, 1)]


@everywhere
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_states_and_all_gradients_are_those_of_the_loop(place, name, shape):
    torch.manual_seed(0)
    (body, parts), (batch, length, size) = CELLS[name], shape
    x = torch.randn(batch, length, parts * size, dtype=torch.float64)
    assert_the_loop_is_met(place, Wide(body, size, parts), x, torch.randn(batch, size, dtype=torch.float64))


@everywhere
@pytest.mark.parametrize("interval", [4, "auto"], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions_stay_within_their_rounding(place, dtype, interval):
    torch.manual_seed(0)
    x = torch.randn(2, 21, 14).to(dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-7}
    assert_the_loop_is_met(place, Wide(with_bias, 7, dtype=dtype), x, interval=interval, **tolerance)


@everywhere
def test_packed_sequences_are_solved_each_on_its_own(place):
    torch.manual_seed(0)
    offsets = (0, 3, 3, 10, 11)
    x, h0 = torch.randn(1, 11, 10, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    assert_the_loop_is_met(place, Wide(with_bias, 5), x, h0, offsets=offsets)


LAYOUTS = {
    "time next to each other": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "rows inside": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "every other number": lambda x: torch.stack((x, x + 1), -1).flatten(2)[..., ::2],
    "part of a wider tensor": lambda x: torch.cat((x[..., :1], x, x[..., :3]), -1)[..., 1:-3],
    "expanded over rows": lambda x: x[:1].expand_as(x),
    "expanded over time": lambda x: x[:, :1].expand_as(x),
    "the same for all channels": lambda x: x[..., :1].expand_as(x),
    "negated in name": lambda x: torch.conj(torch.complex(x, x)).imag,
}


@everywhere
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_leaf_may_lie_in_memory_as_it_likes(place, layout):
    torch.manual_seed(0)
    cell, x = Wide(with_bias, 5).to(place[1]), torch.randn(3, 12, 10, dtype=torch.float64, device=place[1])
    laid = LAYOUTS[layout](x)
    found = solved(place, cell, laid.detach().requires_grad_()).states
    torch.testing.assert_close(found, loop(cell, laid, cell.initial_state(3)), rtol=1e-9, atol=1e-9)
    leaf = LAYOUTS[layout](x).requires_grad_()
    given = [leaf, *cell.parameters()]
    ours, truth = (
        torch.autograd.grad(weighted_sum(one.cpu()), given) for one in (solved(place, cell, leaf).states, loop(cell, leaf, cell.initial_state(3)))
    )
    torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@everywhere
@pytest.mark.parametrize("wanted", ["x", "h0", "bias", "recurrent"])
def test_gradients_of_one_source_alone_are_those_of_the_loop(place, wanted):
    torch.manual_seed(0)
    cell, x = Wide(with_bias, 5).to(place[1]), torch.randn(2, 20, 10, dtype=torch.float64, device=place[1])
    named = {"x": x, "h0": torch.randn(2, 5, dtype=torch.float64, device=place[1]), "bias": cell.bias, "recurrent": cell.recurrent}
    for name, tensor in named.items():
        tensor.requires_grad_(name == wanted)
    ours, truth = (
        torch.autograd.grad(weighted_sum(states.cpu()), named[wanted])
        for states in (solved(place, cell, x, h0=named["h0"]).states, loop(cell, x, named["h0"]))
    )
    torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@everywhere
def test_leaves_and_parameters_with_a_dimension_for_the_parts_are_the_same(place):
    torch.manual_seed(0)

    class Shaped(ToyCell):
        def __init__(self):
            super().__init__(5)
            self.bias = nn.Parameter(torch.randn(2, 5, dtype=torch.float64))

        def step(self, state, gates):
            return mixed(state, *(gates + self.bias).unbind(-2))

        def initial_state(self, batch):
            return self.bias.new_zeros(batch, 5)

        def drive(self, x):
            return x.unflatten(-1, (2, 5))

    cell, x = Shaped().to(place[1]), torch.randn(2, 9, 10, dtype=torch.float64, device=place[1], requires_grad=True)
    ours, truth = solved(place, cell, x).states, loop(cell, x, cell.initial_state(2))
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    given = [x, cell.bias]
    torch.testing.assert_close(*(torch.autograd.grad(weighted_sum(states.cpu()), given) for states in (ours, truth)), rtol=1e-8, atol=1e-8)


class Watched(ReferenceEngine):
    """Notes where it was asked to write gradients."""

    def backward(self, *args, into=None, **options):
        self.into = into
        return super().backward(*args, **options)


def test_a_leaf_has_one_gradient_that_engines_write_to_in_parts():
    torch.manual_seed(0)
    engine, cell, x = Watched(), Wide(with_bias, 3), torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    states = solved((lambda: engine, "cpu"), cell, x).states
    behind = [node.name() for node, _ in states.grad_fn.next_functions if node is not None]
    assert set(behind) == {"torch::autograd::AccumulateGrad"}
    (gradient,) = torch.autograd.grad(states.sum(), x)
    targets = [target for target in engine.into if target is not None]
    assert len(targets) == 2
    assert all(target.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr() for target in targets)
    assert gradient.is_contiguous()


def test_parts_of_a_gradient_that_lie_one_behind_the_other_are_joined_without_a_copy():
    rows = torch.randn(3, 4)
    assert columns._joined([rows[0], rows[1]]).data_ptr() == rows.data_ptr()
    torch.testing.assert_close(columns._joined([rows[0], rows[1]]), rows[:2].flatten())
    torch.testing.assert_close(columns._joined([rows[1], rows[0]]), torch.cat((rows[1], rows[0])))
    torch.testing.assert_close(columns._joined([rows[0], rows[2]]), torch.cat((rows[0], rows[2])))
    torch.testing.assert_close(columns._joined([rows[0], torch.ones(4)]), torch.cat((rows[0], torch.ones(4))))


def test_a_second_derivative_is_refused():
    cell, x = Wide(with_bias, 3), torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(solved((reference, "cpu"), cell, x).states.sum(), x, create_graph=True)
    with pytest.raises(DifferentiationError, match="derivatives='twice'"):
        torch.autograd.grad(gradient.sum(), x)


def test_a_leaf_edited_between_forward_and_backward_raises():
    cell, x = Wide(with_bias, 3), torch.randn(2, 5, 6, dtype=torch.float64)
    states = solved((reference, "cpu"), cell, x).states
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.fixture
def engine(monkeypatch):
    """The reference in the place of the native engine."""
    made = ReferenceEngine()
    monkeypatch.setattr(native, "engine", lambda: made)
    monkeypatch.setattr(native.solve, "engine", lambda: made)
    clear_cache()
    torch._dynamo.reset()
    yield made
    clear_cache()
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CELLS)
def test_a_graph_of_torch_compile_holds_the_solve(engine, name):
    torch.manual_seed(0)
    body, parts = CELLS[name]
    layer = ParaRNN(Wide(body, 3, parts), config=NewtonConfig(backend="native"))
    x = torch.randn(2, 11, 3 * parts, dtype=torch.float64, requires_grad=True)
    given = [x, *layer.parameters()]
    output = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    truth = loop(layer.layers[0], x, layer.layers[0].initial_state(2))
    torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
    ours, wanted = (torch.autograd.grad(weighted_sum(states), given, allow_unused=True) for states in (output, truth))
    for mine, theirs in zip(ours, wanted, strict=True):
        torch.testing.assert_close(torch.zeros(()) if mine is None else mine, torch.zeros(()) if theirs is None else theirs, rtol=1e-8, atol=1e-8)
    assert (engine.solves, engine.backwards) == (1, 1)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=["all", "tensors", "initial"])
def test_the_operators_are_what_they_claim_to_be(engine, needs):
    torch.manual_seed(0)
    cell, x, h0 = Wide(gru, 3, 3), torch.randn(2, 7, 9, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    found = catalogue.compiled(problem := cell_problem(cell, x, NewtonConfig(), h0=h0))
    tensors = [tensor.detach().requires_grad_(needs[0]) for tensor in found.tensors(problem)]
    initial = h0.requires_grad_(needs[1])
    asked = "native", ops.register(found.program), tensors, initial, None, 0, "4", 1e-12, 1e-11, 0
    torch.library.opcheck(ops.solve_op, asked)
    assert engine.solves


def test_a_layer_that_has_solved_before_solves_again(engine):
    torch.manual_seed(0)
    layer = ParaRNN(Wide(with_bias, 3), config=NewtonConfig(backend="native"))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 11, 6, dtype=torch.float64, requires_grad=True)
        given = [x, *layer.parameters()]
        output, truth = layer(x), loop(layer.layers[0], x, layer.layers[0].initial_state(2))
        torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(*(torch.autograd.grad(weighted_sum(states), given) for states in (output, truth)), rtol=1e-8, atol=1e-8)
    assert (engine.solves, engine.backwards) == (3, 3)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_decoder_steps_by_the_kernel(request, backend):
    if backend == "reference":
        request.getfixturevalue("engine")
    else:
        c_engine()
    torch.manual_seed(0)
    layer, x = ParaRNN(Wide(gru, 5, 3), config=NewtonConfig(backend="native")), torch.randn(2, 6, 15, dtype=torch.float64)
    decoder = layer.decoder(2)
    outputs = torch.stack([decoder.step(sample).clone() for sample in x.unbind(1)], 1)
    torch.testing.assert_close(outputs, loop(layer.layers[0], x).detach(), rtol=1e-9, atol=1e-9)
    assert not decoder.explain().count("torch")


def test_the_text_of_a_program_says_what_lies_side_by_side():
    cell = Wide(gru, 4, 3)
    program = catalogue.compiled(cell_problem(cell, torch.randn(1, 2, 12, dtype=torch.float64), NewtonConfig())).program
    assert program.parts == (3, 3)
    assert "o5: channel, side by side 3 + 3" in str(program)


def obstacles(body, size, width, parts=2):
    cell = Wide(body, size, parts)
    found = catalogue.compiled(cell_problem(cell, torch.randn(1, 3, width, dtype=torch.float64), NewtonConfig()))
    assert isinstance(found, tuple), str(found.program)
    return found


WRONG = {
    "a cut inside a part": lambda cell, h, g: h * g[..., 2:6],
    "two cuts inside parts": lambda cell, h, g: h * torch.cat((g[..., 2:4], g[..., :2]), -1),
    "uneven parts": lambda cell, h, g: h * torch.cat(g.split([3, 5], -1), -1)[..., :4],
    "every other number": lambda cell, h, g: h * g[..., ::2],
    "numbers of a channel next to each other": lambda cell, h, g: h * g.unflatten(-1, (4, 2))[..., 0],
    "another view": lambda cell, h, g: h * g.view(-1, 4, 2).sum(-1),
    "one channel": lambda cell, h, g: h * g[..., :1],
    "one number": lambda cell, h, g: h * g[0, 0],
    "one row": lambda cell, h, g: h * g[:1, :4],
    "reversed": lambda cell, h, g: h * g.flip(-1)[..., :4],
    "rolled": lambda cell, h, g: h * torch.roll(g, 1, -1)[..., :4],
    "sum of all": lambda cell, h, g: h * g.sum(-1, keepdim=True),
    "sum over rows": lambda cell, h, g: h * g.sum(0)[:4],
    "softmax": lambda cell, h, g: h * torch.softmax(g, -1)[..., :4],
    "maximum of the parts": lambda cell, h, g: h * g.amax(-1, keepdim=True),
    "shifted parameter": lambda cell, h, g: h * (g + torch.cat((cell.bias[2:], cell.bias[:2])))[..., :4],
    "joined to half": lambda cell, h, g: h * torch.cat((h[..., :2], g[..., 2:4]), -1),
    "joined rows": lambda cell, h, g: h * torch.cat((g[..., :4], g[..., 4:]), 0).view(2, -1, 4)[0],
    "a channel for another": lambda cell, h, g: h * g.unflatten(-1, (2, 4)).transpose(1, 2)[:, :, 0].unsqueeze(1).expand(-1, 4, 4)[:, :, 0],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_mixes_channels_is_refused_with_its_line(name):
    found = obstacles(WRONG[name], 4, 8)
    assert any("test_wide_operands.py, line" in one for one in found), found


def test_a_cut_through_a_part_is_named():
    (found,) = obstacles(WRONG["a cut inside a part"], 4, 8)
    assert "aten.slice" in found
    assert "4 is the number of channels" in found
    assert "taken apart as wholes" in found


@pytest.mark.parametrize("width", [9, 4 * 17], ids=["no whole number", "too many"])
def test_a_width_that_is_no_number_of_parts_is_refused(width):
    assert any(f"({width},) numbers a step" in one for one in obstacles(lambda cell, h, g: h * g[..., :4], 4, width))


def test_a_parameter_with_too_many_numbers_is_refused():
    assert any("'bias' of shape (68,)" in one for one in obstacles(lambda cell, h, g: h * g[..., :4] + cell.bias[:4], 4, 8, parts=17))


def test_writing_into_a_leaf_is_refused():
    for body in (
        lambda cell, h, g: h * g.mul_(2)[..., :4],
        lambda cell, h, g: h * g[..., :4].mul_(2),
        lambda cell, h, g: h * g.detach().mul_(2)[:, :4],
    ):
        assert any("in-place" in one or "in place" in one for one in obstacles(body, 4, 8))


def test_the_solver_falls_back_and_says_why(engine):
    layer = ParaRNN(Wide(WRONG["every other number"], 4), config=NewtonConfig())
    x = torch.randn(1, 1500, 8, dtype=torch.float64)
    output, (result,) = layer.solve(x)
    assert result.backend == "torch"
    assert engine.solves == 0
    torch.testing.assert_close(output, loop(layer.layers[0], x), rtol=1e-6, atol=1e-6)


UNARY = [torch.tanh, torch.sigmoid, torch.neg, F.softplus, torch.sin, lambda x: x.clamp(-1, 1), lambda x: x.clone().mul_(0.5), lambda x: 0.5 * x]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, lambda x, y: torch.where(x > y, x, 0.5 * y), lambda x, y: torch.lerp(x, y, 0.25)]


@pytest.mark.parametrize("size", [1, 2, 4], ids="D{}".format)
@pytest.mark.parametrize("seed", range(8))
def test_random_ways_of_cutting_and_joining_are_compiled_with_their_derivatives(seed, size):
    chooser = torch.Generator().manual_seed(seed)

    def pick(count):
        return int(torch.randint(count, (), generator=chooser))

    recipe = [(pick(5), pick(50), pick(50), pick(50)) for _ in range(9)]

    def body(cell, state, gates):
        d = state.shape[-1]
        # Lists by how many parts there are side by side.
        state = state.expand(gates.shape[0], d)
        pool = {1: [state], 2: [cell.bias.expand(*state.shape[:-1], 2 * d)], 3: [gates]}
        for kind, first, second, function in recipe:
            width = 1 + first % 3
            one, other = pool[width][second % len(pool[width])], pool[width][function % len(pool[width])]
            if kind == 0:
                pool[width].append(UNARY[function % len(UNARY)](one))
            elif kind == 1:
                pool[width].append(BINARY[function % len(BINARY)](one, other))
            elif kind == 2 and width > 1:
                pool[1] += one.split(d, -1)
            elif kind == 3:
                pool[3].append(torch.cat([pool[1][(second + place * function) % len(pool[1])] for place in range(3)], -1))
            else:
                pool[2].append(pool[3][second % len(pool[3])][..., d * (function % 2) : d * (function % 2) + 2 * d])
        found = sum((tensor.unflatten(-1, (width, d)).sum(-2) for width in (2, 3) for tensor in pool[width]), torch.zeros_like(state))
        return torch.tanh(0.3 * found + 0.2 * sum(pool[1][1:], state))

    torch.manual_seed(0)
    assert_the_loop_is_met((reference, "cpu"), Wide(body, size), torch.randn(2, 3, 3 * size, dtype=torch.float64))


def _rearranged(chooser, one, alike, d):
    """Something that may be done to a tensor, and to others of its shape."""
    kind = chooser.choice(
        [
            "slice",
            "slice",
            "unflatten",
            "cat",
            "stack",
            "tanh",
            "product",
            "in place",
            *(["transpose", "select", "flatten", "sum"] if one.ndim > 2 else []),
        ]
    )
    size, other = one.shape[-1], chooser.choice(alike)
    if kind == "slice":
        begin = chooser.choice([0, d, 1, 2 * d]) % size
        return one[..., begin : begin + chooser.choice([d, d, 2 * d, size, 1]) : chooser.choice([1, 1, 1, 2])]
    if kind == "in place":
        fresh = one.clone()
        fresh[..., : chooser.choice([d, size, 1])].mul_(0.5)
        return fresh
    return {
        "unflatten": lambda: one.unflatten(-1, (chooser.choice([part for part in range(1, size + 1) if size % part == 0]), -1)),
        "cat": lambda: torch.cat((one, other), -1),
        "stack": lambda: torch.stack((one, other), chooser.choice([-1, -2, 1])),
        "tanh": lambda: torch.tanh(one),
        "product": lambda: one * other,
        "transpose": lambda: one.transpose(-1, -2),
        "select": lambda: one.select(chooser.choice([-1, -2]), 0),
        "flatten": lambda: one.flatten(-2),
        "sum": lambda: one.sum(chooser.choice([-1, -2])),
    }[kind]()


def _shuffled(seed, state, gates, weight):
    """Cuts, views and joins at random, most of which no kernel can do; a state from whatever looks like one."""
    chooser = random.Random(seed)
    pool = [state, gates, weight.expand(*state.shape[:-1], -1)]
    for _ in range(chooser.randint(3, 8)):
        one = chooser.choice([*pool[-4:], gates])
        made = _rearranged(chooser, one, [other for other in pool if other.shape == one.shape], state.shape[-1])
        if 0 < made.numel() <= 50 * len(state):
            pool.append(made)
    found = [tensor for tensor in pool[3:] if tensor.shape == state.shape]
    found += [tensor.sum(1) for tensor in pool[3:] if tensor.ndim == 3 and tensor.shape[::2] == state.shape]
    return torch.tanh(sum(map(torch.tanh, found), 0.3 * state))


def test_random_cuts_are_compiled_with_their_derivatives_or_refused():
    compiled = 0
    for seed in range(300):
        torch.manual_seed(seed)
        size, parts = 1 + seed % 4, 2 + seed // 4 % 3
        # More rows than any other size, so that none is mistaken for their number.
        state, gates, weight = (
            torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((23, size), (23, parts * size), (2 * size,))
        )

        def step(state, drive, seed=seed):
            return _shuffled(seed, state, *drive)

        truth = step(state, (gates, weight))
        given = (gates[:1].detach(), weight.detach())
        try:
            program = trace(step, torch.zeros(1, size, dtype=torch.float64), given, {}, timed=(True, False)).program
        except CompilationError:
            continue
        compiled += any(argument in program.operands for operation in program.value for argument in operation.arguments)
        operands = columns.apart(program.parts, (gates.detach().unsqueeze(1), weight.detach()))
        torch.testing.assert_close(reference_of.walk(program, operands, state)[:, 0], truth.detach(), rtol=1e-9, atol=1e-9)
        wanted = torch.autograd.grad(weighted_sum(truth), (gates, weight, state), allow_unused=True)
        (grad,) = torch.autograd.grad(weighted_sum(truth), truth)
        *found, start = reference_of.backward(program, grad.unsqueeze(1), truth.detach().unsqueeze(1), operands, state)
        joined = torch.cat(found[:parts], -1).squeeze(1), torch.cat(found[parts:]), start
        for mine, theirs in zip(joined, wanted, strict=True):
            torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs, rtol=1e-8, atol=1e-8)
    # Enough of them use gates as gates may be used.
    assert compiled > 60
