"""Each function of `csrc` over its whole range, against mpmath, and at the numbers that are not finite against torch."""

import math

import mpmath
import pytest
import torch

from pararnn.compiler.engine import Tolerance, Workload
from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Kind, Operation, Program

# Units in the last place that a result may be off.
UNITS = {
    "exp": 1.5,
    "expm1": 2.5,
    "log": 1.5,
    "log1p": 2,
    "tanh": 3,
    "sigmoid": 3,
    "softplus": 3,
    "erf": 2,
    "rsqrt": 1.5,
    "sqrt": 0.5,
    "sin": 2,
    "cos": 2,
}
EXACT = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: x if x > 20 else mpmath.log1p(mpmath.exp(x)),
    "erf": mpmath.erf,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sqrt": mpmath.sqrt,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
}
LOWEST = {"log": 0, "rsqrt": 0, "sqrt": 0, "log1p": -1}
# As far as the header promises.
FARTHEST = {"sin": 2.0**45, "cos": 2.0**45}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
COUNT = 1500


@pytest.fixture(scope="session")
def compute(engine):
    """The value of a primitive at each of some tensors, `lanes` of them side by side."""
    programs = {}

    def program_of(primitive):
        if primitive not in programs:
            names = tuple(f"o{index}" for index in range(PRIMITIVES[primitive].arguments))
            line = Operation("v0", primitive, names)
            lines = (line, Operation("v1", "where", ("v0", 1.0, 0.0))) if PRIMITIVES[primitive].is_truth else (line,)
            result = lines[-1].result
            inputs = ("state", *names)
            programs[primitive] = Program(
                kinds=(Kind.ELEMENT,) * len(names),
                value=Expression(inputs, lines, (result,)),
                advance=Expression(inputs, lines, (result, 0.0)),
                pull=Expression(("costate", *inputs), (), (0.0,) * (len(names) + 1)),
            )
        return programs[primitive]

    def run(primitive, *arguments, lanes=None):
        lanes = lanes or arguments[0].numel()
        operands = [argument.reshape(1, -1, lanes) for argument in arguments]
        program = program_of(primitive)
        length = operands[0].shape[1]
        work = Workload(rows=1, length=length, state=lanes, sequences=1, longest=length, itemsize=arguments[0].element_size())
        initial = torch.zeros(1, lanes, dtype=arguments[0].dtype)
        plan = engine.plan(program, work, length)
        tolerance = Tolerance(absolute=0.0, relative=0.0, sweeps=1)
        return engine.solve(program, operands, initial, offsets=None, plan=plan, tolerance=tolerance)[0].flatten()

    return run


def spread(dtype, count, seed=0):
    """Numbers of all magnitudes, most of them near one, of both signs."""
    random = torch.Generator().manual_seed(seed)
    smallest, largest = (-149, 127.9) if dtype is torch.float32 else (-1074, 1023.9)
    ranges = [(smallest, largest), (-20, 10), (-4, 5)]
    pieces = [torch.rand(count // 3, generator=random, dtype=torch.float64) * (high - low) + low for low, high in ranges]
    signs = torch.randint(0, 2, (count // 3 * 3,), generator=random) * 2 - 1
    return (torch.cat(pieces).exp2() * signs).to(dtype)


def units(found, exact, dtype):
    """How far a result is from the exact one, in units of the last place of that."""
    info = torch.finfo(dtype)
    if abs(exact) > info.max:
        # What rounds to infinity, or nearly: the largest number is one unit away.
        return 0.0 if math.isinf(found) or abs(exact) < info.max * (1 + info.eps) else math.inf
    exponent = max(mpmath.frexp(exact)[1] - 1, mpmath.frexp(mpmath.mpf(info.tiny))[1] - 1) if exact else mpmath.frexp(mpmath.mpf(info.tiny))[1] - 1
    return float(abs(mpmath.mpf(found) - exact) / mpmath.ldexp(mpmath.mpf(info.eps), int(exponent)))


@DTYPES
@pytest.mark.parametrize("function", EXACT)
def test_functions_are_right_to_a_few_units(compute, function, dtype):
    numbers = spread(dtype, COUNT)
    low = LOWEST.get(function)
    if low is not None:
        near = torch.rand(COUNT, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + (0.5 if low == 0 else -0.999999)
        numbers = torch.cat((numbers, near.to(dtype)))
        numbers = numbers[numbers > low]
    if function in FARTHEST:
        turns = (torch.arange(-200, 200, dtype=torch.float64) * (torch.pi / 2)).to(dtype)
        numbers = torch.cat((numbers[numbers.abs() <= FARTHEST[function]], turns, (turns.double() * 1e9).to(dtype)))
    found = compute(function, numbers)
    with mpmath.workprec(300):
        off = [units(one, EXACT[function](mpmath.mpf(number)), dtype) for one, number in zip(found.tolist(), numbers.tolist(), strict=True)]
    worst = max(range(len(off)), key=off.__getitem__)
    assert off[worst] <= UNITS[function], f"{function}({numbers[worst].item()!r}) is {found[worst].item()!r}, off by {off[worst]:.2f} units"


@DTYPES
def test_powers_are_right_to_a_few_units(compute, dtype):
    base = spread(dtype, COUNT).abs()
    random = torch.Generator().manual_seed(3)
    exponent = (torch.randn(COUNT, generator=random, dtype=torch.float64) * 8).to(dtype)
    exponent[::3] = exponent[::3].round()
    base[::3] *= -1
    found = compute("pow", base, exponent)
    with mpmath.workprec(300):
        exact = [mpmath.mpf(x) ** mpmath.mpf(y) for x, y in zip(base.tolist(), exponent.tolist(), strict=True)]
        off = [units(one, value, dtype) for one, value in zip(found.tolist(), exact, strict=True) if not isinstance(value, mpmath.mpc)]
    assert len(off) == COUNT
    assert max(off) <= 4


@DTYPES
@pytest.mark.parametrize("primitive", [name for name, primitive in PRIMITIVES.items() if name not in ("and", "or", "not", "where")])
def test_numbers_that_are_not_finite_come_through_as_in_torch(compute, primitive, dtype):
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -2.5, 1e-30, 60.0, -1e30], dtype=dtype)
    arguments = (
        [special] if PRIMITIVES[primitive].arguments == 1 else [part.contiguous() for part in torch.cartesian_prod(special, special).unbind(1)]
    )
    if primitive in FARTHEST:
        arguments = [special[special.abs() != 1e30]]
    found = compute(primitive, *arguments)
    expected = PRIMITIVES[primitive].meaning(*arguments).to(dtype)
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype is torch.float32 else 1e-13, atol=0, equal_nan=True)


@DTYPES
@pytest.mark.parametrize("function", [*EXACT, "sign", "floor", "abs", "neg"])
def test_zero_keeps_its_sign(compute, function, dtype):
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    found, expected = compute(function, zeros), PRIMITIVES[function].meaning(zeros)
    assert torch.equal(found.signbit(), expected.signbit()) or function == "sign"


@DTYPES
@pytest.mark.parametrize("function", [*EXACT, "pow"])
def test_single_lanes_have_the_bits_of_vectors(compute, function, dtype):
    numbers = spread(dtype, 1200).abs()
    arguments = (numbers, spread(dtype, 1200, seed=5)) if function == "pow" else (numbers,)
    side_by_side = compute(function, *arguments)
    for lanes in (1, 3, 40):
        assert torch.equal(compute(function, *arguments, lanes=lanes).nan_to_num(7), side_by_side.nan_to_num(7))


@pytest.mark.parametrize("function", ["sin", "cos"])
def test_an_angle_too_large_to_be_known_gives_nan_rather_than_anything(compute, function):
    assert compute(function, torch.tensor([2.0**46, -1e300], dtype=torch.float64)).isnan().all()


@DTYPES
def test_truth_values_select_as_in_torch(compute, dtype):
    pairs = torch.cartesian_prod(*[torch.tensor([0.0, -0.0, 1.0, torch.nan], dtype=dtype)] * 3)
    condition, yes, no = (part.contiguous() for part in pairs.unbind(1))
    expected = PRIMITIVES["where"].meaning(condition, yes, no)
    torch.testing.assert_close(compute("where", condition, yes, no), expected, equal_nan=True)
    for primitive in ("and", "or", "not"):
        arguments = (condition, yes)[: PRIMITIVES[primitive].arguments]
        assert torch.equal(compute(primitive, *arguments).bool(), PRIMITIVES[primitive].meaning(*arguments))
