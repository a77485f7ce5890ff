"""Every way to take apart and to join what has several numbers a channel is compiled with its derivatives, or refused."""

import random

import pytest
import torch
from torch.nn import functional as F
from toy_cells import weighted_sum
from wide_cells import Wide, assert_the_loop_is_met, gru, mixed, reference

from pararnn import NewtonConfig
from pararnn.compiler import catalogue, columns
from pararnn.compiler import reference as reference_of
from pararnn.compiler.tracing import trace
from pararnn.errors import CompilationError
from pararnn.solver.api import cell_problem


def _in_place(gates, d):
    fresh = gates * 1.0
    fresh[..., :d].mul_(2.0)
    return fresh.add_(0.5).chunk(2, -1)


def _written(gates, d):
    fresh = torch.zeros_like(gates).copy_(gates)
    return fresh.neg_().chunk(2, -1)


def _rows(gates):
    return gates.reshape(-1, gates.shape[-1])


WAYS = {
    "chunk": lambda g, d: g.chunk(2, -1),
    "split": lambda g, d: g.split(d, -1),
    "split sizes": lambda g, d: torch.split(g, [d, d], dim=-1),
    "tensor_split": lambda g, d: torch.tensor_split(g, 2, dim=-1),
    "slices": lambda g, d: (g[..., :d], g[..., d:]),
    "slices of two dimensions": lambda g, d: (_rows(g)[:, :d].reshape(*g.shape[:-1], d), _rows(g)[:, -d:].reshape(*g.shape[:-1], d)),
    "narrow": lambda g, d: (g.narrow(-1, 0, d), g.narrow(-1, d, d)),
    "unflatten": lambda g, d: g.unflatten(-1, (2, -1)).unbind(-2),
    "view": lambda g, d: g.view(*g.shape[:-1], 2, d).unbind(-2),
    "select": lambda g, d: tuple(part.reshape(*g.shape[:-1], d) for part in (g.reshape(-1, 2, d)[:, 0], g.reshape(-1, 2, d).select(1, 1))),
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


def test_the_text_of_a_program_says_what_lies_side_by_side():
    cell = Wide(gru, 4, 3)
    program = catalogue.compiled(cell_problem(cell, torch.randn(1, 2, 12, dtype=torch.float64), NewtonConfig())).program
    assert program.parts == (3, 3)
    assert "o5: channel, side by side 3 + 3" in str(program)


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
        state = state.expand(*gates.shape[:-1], d)
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
