"""Programs of steps are the steps: every function that can be compiled, and whatever PyTorch lets a step be."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from traced_steps import STATE, assert_program_is_the_step, program_of, tensors

from pararnn.compiler import reference
from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Kind
from pararnn.compiler.tracing import trace

UNARY = {
    "neg": lambda x: -x,
    "abs": torch.abs,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": lambda x: torch.log(x * x + 0.1),
    "log1p": lambda x: torch.log1p(x * x),
    "log2": lambda x: torch.log2(x * x + 0.1),
    "log10": lambda x: torch.log10(x * x + 0.1),
    "exp2": torch.exp2,
    "sqrt": lambda x: torch.sqrt(x * x + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x * x + 0.1),
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": lambda x: torch.tan(0.3 * x),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "expit": torch.special.expit,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "round": torch.round,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "square": torch.square,
    "reciprocal": lambda x: torch.reciprocal(x * x + 1),
    "relu": torch.relu,
    "relu6": lambda x: F.relu6(5 * x),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, alpha=0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, alpha=0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu default": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "hardtanh bounds": lambda x: F.hardtanh(x, -0.5, 0.7),
    "hardsigmoid": lambda x: F.hardsigmoid(4 * x),
    "hardswish": lambda x: F.hardswish(4 * x),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 0.3),
    "softplus": lambda x: F.softplus(12 * x),
    "softplus beta": lambda x: F.softplus(x, beta=3, threshold=4),
    "softsign": F.softsign,
    "logsigmoid": lambda x: F.logsigmoid(20 * x),
    "mish": F.mish,
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "clamp": lambda x: x.clamp(-0.5, 0.8),
    "clamp low": lambda x: x.clamp(min=-0.5),
    "clamp high": lambda x: torch.clamp_max(x, 0.5),
    "nan_to_num": torch.nan_to_num,
    "sinc": torch.sinc,
    "power 0": lambda x: x**0,
    "power 1": lambda x: x**1,
    "power 2": lambda x: x**2,
    "power 3": lambda x: x**3,
    "power 4": lambda x: x**4,
    "power 7": lambda x: x**7,
    "power -1": lambda x: (x * x + 1) ** -1,
    "power -2": lambda x: (x * x + 1) ** -2,
    "power 0.5": lambda x: (x * x + 1) ** 0.5,
    "power -0.5": lambda x: (x * x + 1) ** -0.5,
    "power 1.7": lambda x: (x * x + 1) ** 1.7,
    "power of a number": lambda x: 1.5**x,
    "rsub": lambda x: 1.0 - x,
    "rdiv": lambda x: 1.0 / (x * x + 1),
    "rsub alpha": lambda x: torch.rsub(x, 3.0, alpha=2),
    "no grad": lambda x: x * torch.exp(x).detach(),
    "isnan": lambda x: torch.where(torch.isnan(x), torch.zeros_like(x), x),
    "isinf": lambda x: torch.where(torch.isinf(1 / (x - x)), x, 2 * x),
    "mask as number": lambda x: x * (x > 0),
    "mask to dtype": lambda x: x * (x > 0).to(x.dtype),
    "not": lambda x: torch.where(~(x > 0.5), x, x * x),
    "and or xor": lambda x: x * ((x > 0) & (x < 1) | (x < -1)) + 2 * x * ((x > 0) ^ (x < 1)),
    "where truth": lambda x: x * torch.where(x > 0, x < 1, x < -1),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.25),
    "zeros and ones": lambda x: x + torch.zeros_like(x) + 2 * torch.ones_like(x) + torch.full_like(x, 0.5) + x.new_ones(()) + torch.ones(4),
    "tensor of a number": lambda x: x * torch.tensor(0.5, dtype=x.dtype) + torch.tensor([0.25], dtype=x.dtype),
    "item of a constant": lambda x: x * torch.tensor(0.5).item(),
    "views": lambda x: x.unsqueeze(0).squeeze(0).view_as(x).reshape(x.shape).contiguous().clone().expand_as(x).t().mT,
    "in place": lambda x: (x * 0.5).clamp_(-0.3, 0.3).mul_(x).add_(1).neg_(),
    "in place on a view": lambda x: _in_place_on_a_view(x),
    "filled": lambda x: torch.empty_like(x).fill_(0.5).add_(x),
    "copied": lambda x: torch.zeros_like(x).copy_(x).mul_(2),
    "integer constants": lambda x: x * (torch.ones(4, dtype=torch.long) + 2),
}


def _in_place_on_a_view(x):
    fresh = x * 1.0
    fresh.unsqueeze(0)[0].mul_(3.0)
    return fresh


BINARY = {
    "add": torch.add,
    "add alpha": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub": torch.sub,
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "mul": torch.mul,
    "div": lambda x, y: x / (y * y + 0.5),
    "pow": lambda x, y: (x * x + 0.5) ** y,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "fmin": lambda x, y: torch.where(x < y, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, torch.sigmoid(x)),
    "lerp number": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x * x + 1, value=0.5),
    "where": lambda x, y: torch.where(x > y, x, y * y),
    "where number": lambda x, y: torch.where(x > y, x, 0.5),
    "comparisons": lambda x, y: x * (x >= y) + y * (x <= y) + (x == y) * x + (x != y) * y + (x > 0) * (y < 0) * x,
    "clamp by tensors": lambda x, y: torch.clamp(x, y - 1, y * y),
    "logaddexp": torch.logaddexp,
    "xlogy": lambda x, y: torch.special.xlogy(x, y * y + 0.5),
    "glu": lambda x, y: x * torch.sigmoid(y),
    "prelu": lambda x, y: torch.where(x > 0, x, y * x),
}


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_argument_is_compiled_with_its_derivative(name):
    function = UNARY[name]
    assert_program_is_the_step(lambda state, drive: 0.3 * function(1.5 * state + drive[0]) + 0.1 * state, tensors("element"))


@pytest.mark.parametrize("kind", ["element", "step", "channel", "scalar"])
@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_arguments_is_compiled_with_both_derivatives(name, kind):
    function = BINARY[name]
    assert_program_is_the_step(lambda state, drive: 0.3 * function(state + drive[0], drive[1] + state * 0), tensors("element", kind))
    assert_program_is_the_step(lambda state, drive: 0.3 * function(drive[1], state) + drive[0], tensors("element", kind))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kinds", [("step", "channel"), ("scalar", "scalar", "step"), ("channel", "scalar", "element")], ids=" ".join)
def test_gradients_are_summed_over_what_an_operand_does_not_have(kinds, dtype):
    def step(state, drive):
        first, second, *rest = drive
        gate = torch.sigmoid(first * torch.exp(second)) * second
        for other in rest:
            gate = gate + torch.tanh(other / (1 + first * first))
        return torch.tanh(gate * state + first)

    leaves = [leaf for kind, leaf in zip(("element", *kinds), tensors("element", *kinds, dtype=dtype), strict=True) if kind != "none"]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    assert_program_is_the_step(lambda state, drive: step(state, drive[1:]) + drive[0], leaves, dtype=dtype, **tolerance)


FUNCTIONS = [torch.tanh, torch.sigmoid, F.softplus, F.silu, F.gelu, torch.sin, torch.abs, F.elu, torch.neg, lambda x: x.clamp(-1, 1), F.hardsigmoid]
PAIRS = [torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.lerp(x, y, 0.25), lambda x, y: torch.where(x > y, x, 0.5 * y)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(FUNCTIONS) - 1), st.integers(0, len(PAIRS) - 1), st.integers(0, 20), st.booleans()), min_size=1, max_size=8)
)
def test_random_compositions_are_compiled_with_their_derivatives(recipe):
    def step(state, drive):
        values = [state, *drive]
        for function, pair, which, in_place in recipe:
            value = PAIRS[pair](FUNCTIONS[function](values[which % len(values)]), values[-1])
            values.append(value.mul(0.9).add_(0.05) if in_place else value)
        return torch.tanh(values[-1] + 0.1 * state)

    assert_program_is_the_step(step, tensors("element", "step", "channel", "scalar"))


def test_every_primitive_is_reached_by_some_function():
    reached = set()
    for function in UNARY.values():
        program, _ = program_of(lambda state, drive, f=function: f(state), tensors("element"))
        reached |= {operation.primitive for operation in (*program.value, *program.pull)}
    for function in BINARY.values():
        program, _ = program_of(lambda state, drive, f=function: f(state, drive[0]), tensors("element"))
        reached |= {operation.primitive for operation in (*program.value, *program.pull)}
    assert reached == set(PRIMITIVES)


@pytest.mark.parametrize(
    "step",
    [
        lambda state, drive: state,
        lambda state, drive: drive[0],
        lambda state, drive: torch.zeros_like(state),
        lambda state, drive: state.detach() * 2,
    ],
    ids=["state", "leaf", "constant", "detached"],
)
def test_a_step_may_return_what_it_was_given_or_a_constant(step):
    assert_program_is_the_step(step, tensors("element", "scalar"))


@pytest.mark.parametrize("state", [1, 2, 3, 5, 7])
def test_any_number_of_channels_is_told_from_the_rows(state):
    leaves = [torch.rand(2, 3, state, dtype=torch.float64), torch.rand(2, 3, 1, dtype=torch.float64), torch.rand(state, dtype=torch.float64)]
    program, _ = program_of(lambda h, d: torch.tanh(d[0] + d[1] * d[2] * h), leaves, state=state)
    assert program.kinds == ((Kind.ELEMENT, Kind.STEP, Kind.CHANNEL) if state > 1 else (Kind.ELEMENT, Kind.ELEMENT, Kind.CHANNEL))
    states = reference.walk(program, leaves, torch.zeros(2, state, dtype=torch.float64))
    torch.testing.assert_close(states[:, 0], torch.tanh(leaves[0][:, 0]))


class Gates(NamedTuple):
    update: torch.Tensor
    candidate: torch.Tensor


class MinGRU(nn.Module):
    """A minGRU with a recurrent candidate; parameters by name, in a module inside, in an inner buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, STATE, dtype=torch.float64))
        self.inner = nn.Module()
        self.inner.bias = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor([0.7], dtype=torch.float64))
        self.unused = nn.Linear(3, 3)

    def step(self, state, drive):
        gates = Gates(*drive)
        keep = torch.sigmoid(gates.update + self.inner.bias)
        return torch.lerp(torch.tanh(gates.candidate + self.weight * state), state * self.scale, keep)


def test_parameters_and_buffers_that_are_read_become_operands_by_name():
    cell = MinGRU()
    named = {**dict(cell.named_parameters()), **dict(cell.named_buffers())}
    program = assert_program_is_the_step(cell.step, tensors("element", "element"), named)
    assert program.kinds == (Kind.ELEMENT, Kind.ELEMENT, Kind.CHANNEL, Kind.SCALAR, Kind.SCALAR)
    assert program_of(cell.step, tensors("element", "element"), named)[1] == ("weight", "scale", "inner.bias")


def test_free_variables_and_those_of_functions_inside_become_operands():
    weight, bias = tensors("channel", "scalar")
    cell = MinGRU()

    def inner(x):
        return torch.tanh(x + bias * cell.inner.bias)

    def step(state, drive):
        return inner(weight * state + drive[0])

    named = {"weight": weight, "inner.bias": bias, "inner.cell.inner.bias": cell.inner.bias}
    assert_program_is_the_step(step, tensors("element"), named)
    assert set(program_of(step, tensors("element"), named)[1]) == set(named)


def test_modules_are_as_before_after_tracing_also_when_it_fails():
    cell = MinGRU()
    before = {**dict(cell.named_parameters()), **dict(cell.named_buffers())}
    program_of(cell.step, tensors("element", "element"), before)
    cell.step = lambda state, drive: state + cell.weight * torch.sum(state)
    with pytest.raises(Exception, match="mixes channels"):
        program_of(cell.step, tensors("element", "element"), before)
    after = {**dict(cell.named_parameters()), **dict(cell.named_buffers())}
    assert all(after[name] is tensor for name, tensor in before.items())
    assert isinstance(cell._parameters["weight"], nn.Parameter)


def test_a_parameter_that_is_held_twice_is_two_operands():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = nn.Parameter(torch.rand(STATE, dtype=torch.float64))

        def step(self, state, drive):
            return torch.tanh(self.first * state + self.second * drive[0])

    cell = Tied()
    program, captured = program_of(cell.step, tensors("element"), dict(cell.named_parameters(remove_duplicate=False)))
    assert captured == ("first", "second")
    assert program.kinds[1:] == (Kind.CHANNEL, Kind.CHANNEL)


class TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_custom_functions_keep_their_own_derivative():
    assert_program_is_the_step(lambda state, drive: torch.tanh(TwiceTheGradient.apply(state) * drive[0]), tensors("element"))


def test_no_grad_inside_a_step_is_kept():
    def step(state, drive):
        with torch.no_grad():
            gate = torch.sigmoid(state + drive[0])
        return gate * state + drive[0]

    assert_program_is_the_step(step, tensors("element"))


def test_modules_of_layers_with_settings_are_traced_through():
    class Layered(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sequential(nn.Hardtanh(-0.5, 0.5), nn.SiLU(), nn.LeakyReLU(0.3))

        def step(self, state, drive):
            return self.act(state + drive[0]) + 0.1 * state

    assert_program_is_the_step(Layered().step, tensors("element"))


def test_a_mask_among_the_leaves_is_an_operand_without_gradient():
    mask = torch.rand(3, 4, 1) > 0.5
    leaves = [*tensors("element"), mask]
    program, _ = program_of(lambda state, drive: torch.where(drive[1], torch.tanh(state + drive[0]), state), leaves)
    states = reference.walk(program, leaves, torch.ones(3, STATE, dtype=torch.float64))
    state = torch.ones(3, STATE, dtype=torch.float64)
    for time in range(4):
        state = torch.where(mask[:, time], torch.tanh(state + leaves[0][:, time]), state)
    torch.testing.assert_close(states[:, -1], state.detach())
    assert program.pull.outputs[-1] == 0.0


def test_integers_that_meet_floating_point_numbers_are_operands():
    leaves = [*tensors("element"), torch.randint(0, 3, (3, 4, STATE))]
    assert_program_is_the_step(lambda state, drive: torch.tanh(state * drive[1] + drive[0]), leaves)


def test_half_precision_is_traced_in_single_precision():
    drive = torch.rand(1, STATE, dtype=torch.bfloat16)
    traced = trace(lambda state, drive: torch.tanh(state + drive), torch.zeros(1, STATE, dtype=torch.bfloat16), drive, {})
    assert [operation.primitive for operation in traced.program.value] == ["add", "tanh"]


def test_numbers_that_are_not_finite_pass_as_in_the_step():
    def step(state, drive):
        bounded = torch.minimum(torch.maximum(drive[0], state * 0), drive[0] + 1)
        return torch.where(torch.isnan(bounded), bounded, torch.relu(bounded)) + torch.sigmoid(drive[0]) * 0

    drive = torch.tensor([float("nan"), math.inf, -math.inf, 1.0], dtype=torch.float64).expand(3, 4, STATE).clone()
    program, _ = program_of(step, [drive])
    torch.testing.assert_close(
        reference.walk(program, [drive], torch.zeros(3, STATE, dtype=torch.float64))[:, 0],
        step(torch.zeros(3, STATE, dtype=torch.float64), (drive[:, 0],)),
        equal_nan=True,
    )


def test_equal_steps_give_equal_keys_and_others_do_not():
    keys = [program_of(lambda state, drive, factor=factor: factor * state + drive[0], tensors("element"))[0].key for factor in (0.5, 0.5, 0.6)]
    assert keys[0] == keys[1] != keys[2]


def test_what_surrounds_the_call_does_not_matter():
    step, leaves = (lambda state, drive: torch.tanh(state + drive[0])), tensors("element")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = program_of(step, leaves)[0]
    with torch.inference_mode():
        within = program_of(step, leaves)[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.numpy(), torch.from_numpy):
        hooked = program_of(step, leaves)[0]
    assert inside.key == within.key == hooked.key == program_of(step, leaves)[0].key
