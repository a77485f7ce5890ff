"""The fused solve of ParaCfC by the engines that compile, against the plain solver; and what graphs make of it."""

import os

import pytest
import torch
from stepwise_engine import StepwiseEngine

from pararnn import DifferentiationError, NewtonConfig, ParaRNN, Status, newton_apply
from pararnn.compiler.native import toolchain
from pararnn.selection import clear_cache
from pararnn_cfc import ParaCfC, fused, fused_setting
from pararnn_cfc.fused_op import newton_cfc_fused

PLAIN = NewtonConfig(backend="torch")
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
# The interpreter takes its time over every number; three rounds of what a kernel reads ahead are enough for it.
LENGTH = 40 if INTERPRETED else 70
# Without a compiler, or without the interpreter that Triton needs on a CPU, there is nothing to test.
PLACES = [
    *([] if toolchain.reasons() else [pytest.param(("native", "cpu"), id="native")]),
    *([pytest.param(("triton", "cpu"), id="triton")] if INTERPRETED else []),
    pytest.param(("triton", "cuda"), id="triton on a GPU", marks=pytest.mark.gpu),
]
everywhere = pytest.mark.parametrize("place", PLACES)
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def samples(batch, length, d_in=5, *, dtype=torch.float64, device="cpu"):
    return torch.cat((torch.randn(batch, length, d_in - 1), 0.05 + torch.rand(batch, length, 1)), dim=-1).to(device, dtype)


def agree(place, state, x, *, interval="auto", **options):
    """States and all gradients by the engine at `place` equal those of the plain solver in double precision."""
    engine, device = place
    cell = ParaCfC(5, state, dtype=x.dtype, device=device)
    with torch.no_grad():
        cell.u[::3] = 0.7
    exact = ParaCfC(5, state, dtype=torch.float64)
    exact.load_state_dict(cell.state_dict())
    found = []
    for each, config, dtype, where in (
        (cell, NewtonConfig(backend=engine, interval=interval), x.dtype, device),
        (exact, PLAIN, torch.float64, "cpu"),
    ):
        given = x.detach().to(where, dtype).requires_grad_()
        start = torch.linspace(-1, 1, options["starts"] * state).view(-1, state).to(where).requires_grad_()
        packed = None if options.get("ends") is None else torch.tensor(options["ends"], device=where)
        states = newton_apply(each, given, config, h0=start, cu_seqlens=packed)
        cotangent = torch.linspace(-1, 1, states.numel(), dtype=torch.float64).view_as(states).to(where, states.dtype)
        gradients = torch.autograd.grad(states, (given, start, *each.parameters()), cotangent)
        found.append([tensor.detach().cpu().double() for tensor in (states, *gradients)])
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=CLOSE[x.dtype], atol=CLOSE[x.dtype] * max(1, float(truth.abs().max())))


@everywhere
def test_offsets_may_lie_apart_in_memory(place):
    engine, device = place
    cell, x = ParaCfC(5, 6, device=device), samples(1, 37, dtype=torch.float32, device=device)
    ends = torch.tensor((0, 9, 20, 9, 37, 9), device=device)[::2]
    apart, together = (newton_apply(cell, x, NewtonConfig(backend=engine), cu_seqlens=offsets) for offsets in (ends, ends.contiguous()))
    assert torch.equal(apart, together)


@everywhere
@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 37, 5), (2, LENGTH, 33)], ids=str)
def test_states_and_gradients_equal_the_plain_solver(place, size, dtype):
    batch, length, state = size
    agree(place, state, samples(batch, length, dtype=dtype), starts=batch)


@everywhere
@pytest.mark.parametrize("interval", [1, 8, "parallel"])
def test_intervals_give_the_same(place, interval):
    agree(place, 5, samples(2, LENGTH), interval=interval, starts=2)


@everywhere
def test_packed_sequences_give_the_same(place):
    agree(place, 5, samples(1, 70), starts=4, ends=(0, 20, 20, 69, 70))


# A GPU is given the whole at once.
@pytest.mark.parametrize("place", PLACES[: not toolchain.reasons()])
def test_blocks_that_fit_a_small_cache_give_the_same(place, monkeypatch):
    monkeypatch.setattr(fused_setting, "CACHED", 1 << 11)
    monkeypatch.setattr(fused_setting, "LANES", 8)
    fused_setting.setting.cache_clear()
    agree(place, 5, samples(5, 70), starts=5)
    fused_setting.setting.cache_clear()


@everywhere
def test_the_result_says_how_it_was_found(place):
    engine, device = place
    layer = ParaRNN(ParaCfC(5, 6, device=device), config=NewtonConfig(backend=engine, interval=8))
    result = layer.solve(samples(2, 70, dtype=torch.float32, device=device))[1][0]
    assert result.backend == engine
    assert result.status is Status.CONVERGED
    assert result.iterations >= 1
    assert result.converged.tolist() == [True, True]


@pytest.mark.gpu
@pytest.mark.parametrize("gap", [-0.1, float("nan")], ids=str)
def test_a_gap_that_cannot_be_makes_nan_on_a_gpu(gap):
    x = samples(2, 70, dtype=torch.float32, device="cuda")
    x[1, 7, -1] = gap
    states = newton_apply(ParaCfC(5, 6, device="cuda"), x, NewtonConfig(backend="triton"))
    assert states[0].isfinite().all()
    assert states[1, :7].isfinite().all()
    assert states[1, 7:].isnan().all()


@pytest.mark.gpu
def test_a_layer_fits_into_a_graph_of_cuda():
    layer, x = ParaRNN(ParaCfC(5, 6, device="cuda")), samples(2, 300, dtype=torch.float32, device="cuda")
    # As torch wants it before a capture: first calls on another stream.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            layer(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    expected = [weight.grad / 3 for weight in layer.parameters()]
    graph = torch.cuda.CUDAGraph()
    layer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        captured = layer(x)
        captured.sum().backward()
    graph.replay()
    torch.testing.assert_close(captured, layer(x))
    torch.testing.assert_close([weight.grad for weight in layer.parameters()], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_forward_and_backward_need_little_more_than_the_projections():
    layer, x = ParaRNN(ParaCfC(9, 256, device="cuda")), samples(8, 4096, 9, dtype=torch.float32, device="cuda")
    layer(x).sum().backward()
    layer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(x).sum().backward()
    assert torch.cuda.max_memory_allocated() - before <= 3.6 * 4 * 8 * 4096 * 256


@pytest.fixture
def stepwise(monkeypatch):
    """The engine that runs programs step by step, in the place of the one that compiles."""
    found = StepwiseEngine()
    monkeypatch.setattr(fused_setting, "engine_named", lambda name: found)
    monkeypatch.setattr(fused, "cpu_reasons", lambda request: ())
    fused_setting.setting.cache_clear()
    clear_cache()
    yield found
    fused_setting.setting.cache_clear()
    clear_cache()


def arguments(cell, x, *, ends=None, bias=True, interval=0):
    start = torch.randn(x.shape[0] if ends is None else len(ends) - 1, cell.d_h, dtype=x.dtype, requires_grad=True)
    weights = cell.W_x.weight, cell.W_x.bias if bias else None, cell.u
    return x.requires_grad_(), *weights, start, None if ends is None else torch.tensor(ends), 0.5, "native", interval, -1.0, -1.0, 0


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"ends": (0, 3, 9)}, {"interval": 4}], ids=["plain", "no_bias", "packed", "interval"])
def test_the_operator_is_what_graphs_expect(stepwise, options):
    cell = ParaCfC(5, 6, dtype=torch.float64)
    torch.library.opcheck(newton_cfc_fused, arguments(cell, samples(1, 9), **options))


@pytest.mark.parametrize("length", [9, 0])
def test_the_operator_gives_what_the_layer_gives(stepwise, length):
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples(2, length)
    given = arguments(cell, x)
    states, record = newton_cfc_fused(*given)
    assert record.shape == (2, 3)
    wanted = [given[index] for index in range(5)]
    truth = newton_apply(cell, x, PLAIN, h0=given[4])
    torch.testing.assert_close(states, truth, rtol=1e-12, atol=1e-12)
    ours, expected = (torch.autograd.grad(found.square().sum(), wanted, allow_unused=True, materialize_grads=True) for found in (states, truth))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_gradients_lie_in_memory_as_a_graph_is_told(stepwise):
    given = arguments(ParaCfC(5, 6, dtype=torch.float64), samples(2, 9))
    found = torch.autograd.grad(newton_cfc_fused(*given)[0].sum(), given[:5])
    assert [gradient.stride() for gradient in found] == [source.contiguous().stride() for source in given[:5]]


def test_the_operator_raises_at_a_second_derivative(stepwise):
    given = arguments(ParaCfC(5, 6, dtype=torch.float64), samples(2, 9))
    (first,) = torch.autograd.grad(newton_cfc_fused(*given)[0].square().sum(), given[0], create_graph=True)
    with pytest.raises(DifferentiationError, match="differentiated twice"):
        torch.autograd.grad(first.sum(), given[1])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_stack_is_one_graph(stepwise, dynamic):
    layer = ParaRNN(ParaCfC(5, 6, dtype=torch.float64), num_layers=2, return_hidden=True, config=NewtonConfig(backend="native"))
    graph = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for x in (samples(2, 9), samples(3, 11)):
        x.requires_grad_()
        (ours, ours_final), (truth, final) = graph(x), layer(x)
        torch.testing.assert_close((ours, *ours_final), (truth, *final), rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(output.square().sum(), [x, *layer.parameters()]) for output in (ours, truth)]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_packed_sequences_are_one_graph(stepwise):
    layer = ParaRNN(ParaCfC(5, 6, dtype=torch.float64), return_hidden=True, config=NewtonConfig(backend="native"))
    graph = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, ends = samples(1, 20), torch.tensor((0, 7, 7, 20))
    (ours, (ours_final,)), (truth, (final,)) = graph(x, None, ends), layer(x, None, ends)
    torch.testing.assert_close((ours, ours_final), (truth, final), rtol=1e-12, atol=1e-12)


class OwnStep(ParaCfC):
    """Moves half as far."""

    def step(self, state, drive=None, *, wx=None):
        return (state + super().step(state, drive, wx=wx)) / 2


def test_a_graph_of_another_step_is_not_fused(stepwise):
    layer, x = ParaRNN(OwnStep(5, 6, dtype=torch.float64)), samples(2, 9)
    truth = ParaRNN(layer.layers[0], solver="sequential")(x)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), truth, rtol=1e-12, atol=1e-12)
    assert not stepwise.calls


@pytest.mark.parametrize("probe", [] if toolchain.reasons() else [fused.native_probe], ids=["native"] * (not toolchain.reasons()))
def test_the_probe_runs(probe):
    assert probe() is None
