"""The fused solve of ParaCfC: states and gradients against the plain solver and the walk, refusals, graphs."""

import copy
import math
import pickle

import pytest
import torch
from stepwise_engine import StepwiseEngine, small_blocks
from torch import nn
from torch.func import functional_call

from pararnn import DifferentiationError, DTypeError, InputError, NewtonConfig, ParaRNN, ShapeError, newton_apply
from pararnn.selection import clear_cache
from pararnn_cfc import ParaCfC, fused, fused_setting

PLAIN = NewtonConfig(backend="torch")
FUSED = NewtonConfig(backend="native")
SHAPES = [(2, 64), (1, 1), (3, 1), (1, 37), (5, 2)]


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """The reference engine in the place of the one that compiles."""
    torch.manual_seed(0)
    found = StepwiseEngine()
    monkeypatch.setattr(fused_setting, "engine_named", lambda name: found)
    monkeypatch.setattr(fused, "cpu_reasons", lambda request: ())
    fused_setting.setting.cache_clear()
    clear_cache()
    yield found
    fused_setting.setting.cache_clear()
    clear_cache()


def samples(batch=2, length=64, d_in=5, *, dtype=torch.float64):
    return torch.cat((torch.randn(batch, length, d_in - 1), 0.05 + torch.rand(batch, length, 1)), dim=-1).to(dtype)


def solved(cell, x, config, **options):
    """States and the gradients by everything that can have one."""
    states = newton_apply(cell, x, config, **options)
    cotangent = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
    given = [tensor for tensor in (x, options.get("h0")) if tensor is not None and tensor.requires_grad]
    wanted = [*given, *(weight for weight in cell.parameters() if weight.requires_grad)]
    return states, torch.autograd.grad(states, wanted, cotangent)


def agree(cell, x, engine, *, rtol=1e-12, atol=1e-12, **options):
    ours, truth = (solved(cell, x, config, **options) for config in (FUSED, PLAIN))
    assert ("backward", x.shape[1]) in engine.calls
    torch.testing.assert_close(ours, truth, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bound", [0.5, None, 0.0], ids="bound_{}".format)
def test_states_and_gradients_equal_the_plain_solver(shape, bound, engine):
    cell = ParaCfC(5, 6, max_recurrent_norm=bound, dtype=torch.float64)
    agree(cell, samples(*shape).requires_grad_(), engine, h0=torch.randn(shape[0], 6, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("cut", [(5, 1), (5, 5), (2, 64), (2, 10), (5, 64)], ids="blocks_of_{}".format)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_blocks_give_what_the_whole_gives(cut, dtype, engine, monkeypatch):
    cell, x, start = ParaCfC(5, 6, dtype=dtype), samples(5, dtype=dtype).requires_grad_(), torch.randn(5, 6, requires_grad=True)
    whole = solved(cell, x, FUSED, h0=start)
    make = fused_setting.setting
    monkeypatch.setattr(fused, "setting", lambda question: small_blocks(make(question), *cut))
    blocks = solved(cell, x, FUSED, h0=start)
    assert len(engine.calls) == 2 + 2 * math.ceil(5 / cut[0]) * math.ceil(64 / cut[1])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(blocks, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ends", [(0, 64), (0, 1, 20, 64), (0, 0, 30, 30, 64, 64)], ids=str)
def test_packed_sequences_equal_the_plain_solver(ends, engine):
    cell, count = ParaCfC(5, 6, dtype=torch.float64), len(ends) - 1
    start = torch.randn(count, 6, dtype=torch.float64, requires_grad=True)
    agree(cell, samples(1).requires_grad_(), engine, h0=start, cu_seqlens=torch.tensor(ends, dtype=torch.int32))
    results = [ParaRNN(cell, config=config).solve(samples(1), start, torch.tensor(ends))[1][0] for config in (FUSED, PLAIN)]
    torch.testing.assert_close(results[0].final.shape, results[1].final.shape)


def test_the_final_states_equal_those_of_the_plain_solver():
    cell, x, ends = ParaCfC(5, 6, dtype=torch.float64), samples(1), torch.tensor((0, 0, 30, 30, 64, 64))
    start = torch.randn(5, 6, dtype=torch.float64)
    ours, truth = (ParaRNN(cell, config=config, return_hidden=True)(x, start, ends)[1][0] for config in (FUSED, PLAIN))
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)], ids=str)
def test_lower_precision_equals_the_plain_solver(dtype, close, engine):
    agree(ParaCfC(5, 6, dtype=dtype), samples(dtype=dtype).requires_grad_(), engine, rtol=close, atol=close)
    assert newton_apply(ParaCfC(5, 6, dtype=dtype), samples(dtype=dtype), FUSED).dtype == torch.float32


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.cat((x, x), -1)[..., 5:],
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(3, -1, -1),
    ],
    ids=["time_first", "channels_first", "part", "every_other", "expanded"],
)
def test_samples_may_lie_anyhow_in_memory(arrange, engine):
    x = samples()
    arranged = arrange(x).detach().requires_grad_()
    agree(ParaCfC(5, 6, dtype=torch.float64), arranged, engine)


@pytest.mark.parametrize("source", ["x", "W_x.weight", "W_x.bias", "u", "h0"])
def test_each_gradient_is_right_when_it_alone_is_wanted(source, engine):
    cell, x, start = ParaCfC(5, 6, dtype=torch.float64).requires_grad_(False), samples(), torch.randn(2, 6, dtype=torch.float64)
    ({"x": x, "h0": start} | dict(cell.named_parameters()))[source].requires_grad_()
    agree(cell, x, engine, h0=start)


def test_a_projection_without_bias_is_served(engine):
    cell = ParaCfC(5, 6, dtype=torch.float64)
    cell.W_x = nn.Linear(4, 12, bias=False, dtype=torch.float64)
    agree(cell, samples().requires_grad_(), engine)


def test_nothing_is_kept_where_no_gradient_is_wanted():
    cell = ParaCfC(5, 6, dtype=torch.float64).requires_grad_(False)
    assert not newton_apply(cell, samples(), FUSED).requires_grad


@pytest.mark.parametrize("bound", [0.3, 0.0], ids="bound_{}".format)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_recurrent_weights_outside_their_limit_have_the_gradient_of_the_clip(bound, dtype, engine):
    cell = ParaCfC(5, 6, max_recurrent_norm=bound, dtype=dtype)
    with torch.no_grad():
        cell.u.copy_(torch.tensor([0.7, -0.7, 0.31, -0.301, 0.3, 0.1]))
    x, cotangent = samples(dtype=dtype), torch.randn(2, 64, 6)
    for sign in (1, -1):
        ours, truth = (torch.autograd.grad(sign * (newton_apply(cell, x, config) * cotangent).sum(), cell.u)[0] for config in (FUSED, PLAIN))
        close = 1e-12 if dtype == torch.float64 else 5e-2
        torch.testing.assert_close(ours, truth, rtol=close, atol=close)
        assert torch.equal(ours == 0, truth == 0)


def test_gaps_at_the_limits_have_the_gradient_of_the_clamp(engine):
    x = samples()
    x[0, 3:6, -1] = torch.tensor([0.0, 1e-4, float("inf")])
    agree(ParaCfC(5, 6, dtype=torch.float64), x.requires_grad_(), engine)


def test_weights_are_read_where_functional_call_puts_them(engine):
    layer, x = ParaRNN(ParaCfC(5, 6, dtype=torch.float64), config=FUSED), samples()
    weights = {name: torch.randn_like(weight).requires_grad_() for name, weight in layer.named_parameters()}
    states = functional_call(layer, weights, (x,))
    ours = torch.autograd.grad(states.sum(), list(weights.values()))
    truth = torch.autograd.grad(functional_call(ParaRNN(layer.layers[0], config=PLAIN), weights, (x,)).sum(), list(weights.values()))
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


def test_a_parametrised_projection_is_served(engine):
    cell = ParaCfC(5, 6, dtype=torch.float64)
    nn.utils.parametrizations.weight_norm(cell.W_x)
    agree(cell, samples().requires_grad_(), engine)


@pytest.mark.parametrize("name", ["W_x.weight", "W_x.bias", "u"])
def test_a_weight_that_is_edited_before_the_backward_pass_is_noticed(name):
    cell = ParaCfC(5, 6, dtype=torch.float64)
    states = newton_apply(cell, samples(), FUSED)
    with torch.no_grad():
        cell.get_parameter(name).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


def test_a_retained_graph_gives_the_same_gradients_twice():
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples().requires_grad_()
    loss = newton_apply(cell, x, FUSED).square().sum()
    first, second = (torch.autograd.grad(loss, (x, *cell.parameters()), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_second_derivative_raises():
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples().requires_grad_()
    first = torch.autograd.grad(newton_apply(cell, x, FUSED).square().sum(), (x, cell.u), create_graph=True)
    plain = torch.autograd.grad(newton_apply(cell, x, PLAIN).square().sum(), (x, cell.u))
    torch.testing.assert_close([gradient.detach() for gradient in first], list(plain), rtol=1e-12, atol=1e-12)
    for gradient in first:
        with pytest.raises(DifferentiationError, match="derivatives='twice'"):
            torch.autograd.grad(gradient.sum(), cell.W_x.weight, retain_graph=True)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0), (0, 0)], ids=str)
def test_nothing_to_solve_is_solved(shape):
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples(*shape).requires_grad_()
    states, final = ParaRNN(cell, config=FUSED, return_hidden=True)(x)
    assert states.shape == (*shape, 6)
    assert final[0].shape == (shape[0], 6)
    states.sum().backward()


@pytest.mark.parametrize(("value", "words"), [(-0.1, r"negative \(-0.1 s"), (float("nan"), "NaN")], ids=str)
def test_a_gap_that_cannot_be_is_refused(value, words):
    x = samples()
    x[1, 7, -1] = value
    with pytest.raises(InputError, match=f"a time gap is {words}"):
        newton_apply(ParaCfC(5, 6, dtype=torch.float64), x, FUSED)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_a_nan_feature_is_reported(packed):
    x = samples(1)
    x[0, 7, 0] = float("nan")
    with pytest.raises(InputError, match="batch 0, step 7"):
        newton_apply(ParaCfC(5, 6, dtype=torch.float64), x, FUSED, cu_seqlens=torch.tensor((0, 20, 20, 64)) if packed else None)


def test_the_program_for_devices_that_nobody_waits_for_makes_nan_of_a_gap_that_cannot_be():
    guarded = fused_setting.program(torch.float64, 0.5, guarded=True, biased=False)
    numbers = torch.rand(2, 64, 6, dtype=torch.float64)
    gaps = samples()[..., -1:]
    gaps[0, 7], gaps[1, 9] = -1e-9, float("nan")
    states = fused_setting.engine_named("reference").solve(
        guarded, (numbers, numbers, gaps, numbers[0, 0]), numbers[:, 0], offsets=None, plan=None, tolerance=None
    )[0]
    assert states[0, :7].isfinite().all()
    assert states[0, 7:].isnan().all()
    assert states[1, :9].isfinite().all()
    assert states[1, 9:].isnan().all()


MISFITS = {
    "width": (lambda cell, x: (torch.cat((x, x), -1), {}), ShapeError, "x ends in 10 channels"),
    "dtype": (lambda cell, x: (x.float(), {}), DTypeError, "convert one of them"),
    "start": (lambda cell, x: (x, {"h0": torch.zeros(3, 6)}), ShapeError, "initial state has shape"),
    "complex start": (lambda cell, x: (x, {"h0": torch.zeros(2, 6, dtype=torch.complex128)}), DTypeError, "pass its real part"),
    "guess": (lambda cell, x: (x, {"guess": torch.zeros(2, 64, 5)}), ShapeError, "the guess has shape"),
    "packed rows": (lambda cell, x: (x, {"cu_seqlens": torch.tensor((0, 64))}), ShapeError, "packed sequences lie in one row"),
    "offsets": (lambda cell, x: (x[:1], {"cu_seqlens": torch.tensor((0, 63))}), InputError, "cu_seqlens runs from 0 to 63"),
}


@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS)
def test_inputs_that_do_not_fit_are_refused_in_the_words_of_the_plain_solver(misfit):
    make, error, words = misfit
    cell = ParaCfC(5, 6, dtype=torch.float64)
    x, options = make(cell, samples())
    with pytest.raises(error, match=words):
        newton_apply(cell, x, FUSED, **options)


def test_a_guess_changes_nothing():
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples()
    assert torch.equal(newton_apply(cell, x, FUSED, guess=torch.randn(2, 64, 6)), newton_apply(cell, x, FUSED))


class OwnStep(ParaCfC):
    """Moves half as far."""

    def step(self, state, drive=None, *, wx=None):
        return (state + super().step(state, drive, wx=wx)) / 2


class OwnLimit(ParaCfC):
    """Limits in another way."""

    def _limited(self, weight):
        return 0.5 * torch.tanh(weight)


class OwnStart(ParaCfC):
    """Starts elsewhere, which kernels are told."""

    def initial_state(self, batch):
        return super().initial_state(batch) + 0.25


def hooked(cell):
    cell.W_x.register_forward_hook(lambda module, inputs, output: 2 * output)
    return cell


def replaced(cell):
    cell.W_x = type("Wide", (nn.Linear,), {"forward": lambda self, x: 2 * nn.Linear.forward(self, x)})(4, 12, dtype=torch.float64)
    return cell


def patched(cell):
    forward = cell.W_x.forward
    cell.W_x.forward = lambda x: 2 * forward(x)
    return cell


def called(cell):
    cell.W_x = type("Calls", (nn.Linear,), {"__call__": lambda self, x: 2 * nn.Linear.__call__(self, x)})(4, 12, dtype=torch.float64)
    return cell


def shadowed(cell):
    cell.drive = lambda x: ParaCfC.drive(cell, 2 * x)
    return cell


STRANGERS = {
    "diag_h": (lambda: ParaCfC(5, 6, gate_mix="diag_h", dtype=torch.float64), "gate_mix='diag_h'"),
    "step": (lambda: OwnStep(5, 6, dtype=torch.float64), "OwnStep has its own step"),
    "limit": (lambda: OwnLimit(5, 6, dtype=torch.float64), "OwnLimit has its own _limited"),
    "drive": (lambda: shadowed(ParaCfC(5, 6, dtype=torch.float64)), "ParaCfC has its own drive"),
    "hook": (lambda: hooked(ParaCfC(5, 6, dtype=torch.float64)), "W_x has hooks"),
    "patched": (lambda: patched(ParaCfC(5, 6, dtype=torch.float64)), "W_x is a Linear with its own forward"),
    "called": (lambda: called(ParaCfC(5, 6, dtype=torch.float64)), "W_x is a Calls with its own forward"),
    "projection": (lambda: replaced(ParaCfC(5, 6, dtype=torch.float64)), "W_x is a Wide with its own forward"),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_what_is_not_the_documented_cell_is_left_to_the_general_solver(stranger, engine):
    make, words = stranger
    cell, x = make(), samples()
    truth = ParaRNN(cell, solver="sequential")(x)
    torch.testing.assert_close(newton_apply(cell, x, NewtonConfig(backend="torch")), truth, rtol=1e-12, atol=1e-12)
    assert any(words in obstacle for obstacle in cell.solve_obstacles())
    torch.testing.assert_close(newton_apply(cell, x), truth, rtol=1e-12, atol=1e-12)
    assert not engine.calls


def test_a_cell_that_only_starts_elsewhere_is_served(engine):
    agree(OwnStart(5, 6, dtype=torch.float64), samples().requires_grad_(), engine)


def test_a_stack_and_decoding_agree_with_the_fused_layer(engine):
    layer, x = ParaRNN(ParaCfC(5, 6, dtype=torch.float64), num_layers=3, config=FUSED), samples()
    outputs, states = layer(x), None
    assert engine.calls == [("solve", 64)] * 3
    for time in range(64):
        output, states = layer.step(x[:, time], states)
        torch.testing.assert_close(output, outputs[:, time], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deepcopy", "pickle"])
def test_a_layer_that_was_solved_can_be_copied(make):
    layer, x = ParaRNN(ParaCfC(5, 6, dtype=torch.float64), config=FUSED), samples()
    layer(x).sum().backward()
    assert torch.equal(make(layer)(x), layer(x))
