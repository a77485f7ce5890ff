"""Random recurrences, every way there is to scan them, and the oracle: the walk, segment by segment."""

import dataclasses
import itertools

import pytest
import torch

import pararnn.scans
from pararnn.scans import chunked, reference, triton_diagonal
from pararnn.structures.base import Structure
from pararnn.structures.block_diagonal import BlockDiagonal
from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal

# What each leaf holds for one step, from the structure's class and the size of the state.
STRUCTURES = {
    "diagonal": (Diagonal, lambda size: (size,)),
    "blocks of 2": (BlockDiagonal, lambda size: (2, 2, size // 2)),
    "blocks of 3": (BlockDiagonal.sized(3), lambda size: (3, 3, size // 3)),
    "dense": (Dense, lambda size: (size, size)),
}
# The planner walks small cases; these force chunks of 2 (deep recursion), 3 (which leave a rest), and 16 on it.
CHUNKS = (None, 2, 3, 16)
WAYS = {"walk" if chunk is None else f"chunks of {chunk}": ("torch", chunk) for chunk in CHUNKS} | {"numba": ("numba", None)}


@dataclasses.dataclass
class Recurrence:
    transition: Structure
    bias: torch.Tensor
    initial: torch.Tensor | None

    @property
    def tensors(self):
        """Everything that a gradient may be asked of."""
        return [*self.transition.leaves(), self.bias, *([] if self.initial is None else [self.initial])]

    def rebuilt(self, tensors):
        """The same recurrence with other numbers, in the order of `tensors`."""
        count = len(self.transition.leaves())
        leaves, bias, initial = tensors[:count], tensors[count], tensors[count + 1 :]
        return Recurrence(type(self.transition).from_leaves(*leaves), bias, initial[0] if initial else None)

    def requiring_grad(self):
        return self.rebuilt([tensor.detach().clone().requires_grad_() for tensor in self.tensors])

    def to(self, dtype):
        return self.rebuilt([tensor.detach().to(dtype) for tensor in self.tensors])


@pytest.fixture
def recurrence():
    """A random recurrence whose products of maps neither grow nor vanish quickly."""

    def make(structure="diagonal", rows=2, length=7, size=6, *, seed=0, dtype=torch.float64, segments=None, initial=True, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        kind, tail = STRUCTURES[structure]
        maps = torch.randn(rows, length, *tail(size), generator=generator, dtype=dtype)
        norm = 1.0 if structure == "diagonal" else tail(size)[0] ** 0.5
        bias = torch.randn(rows, length, size, generator=generator, dtype=dtype)
        start = torch.randn(rows if segments is None else segments, size, generator=generator, dtype=dtype)
        return Recurrence(kind.from_leaves(maps * (scale / norm)), bias, start if initial else None)

    return make


def pytest_generate_tests(metafunc):
    """Run a test for every way and every structure that it asks for, where the two fit each other."""
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    names = [name for name in ("way", "structure") if name in metafunc.fixturenames and name not in marks]
    ways = getattr(metafunc.module, "ENOUGH_WAYS", WAYS)
    pairs = [(way, structure) for way in ways for structure in STRUCTURES if WAYS[way][0] == "torch" or structure == "diagonal"]
    if names == ["way", "structure"]:
        metafunc.parametrize(names, pairs, ids=[", ".join(pair) for pair in pairs])
    elif names:
        metafunc.parametrize(names, [[one] for one in (ways if names == ["way"] else STRUCTURES)])


@pytest.fixture
def chunks(monkeypatch):
    """Make the plain PyTorch scan use chunks of this many steps wherever two of them fit."""

    def force(chunk):
        def length_of(rows, length, size, structure, machine):
            return length if chunk is None or 2 * chunk > length else chunk

        monkeypatch.setattr(chunked, "chunk_length", length_of)

    return force


@pytest.fixture
def launches(monkeypatch):
    """Make the scan in Triton use this launch; its interpreter computes in numpy, which is not to warn of what a test overflows on purpose."""
    numpy = pytest.importorskip("numpy")

    def force(launch):
        monkeypatch.setattr(triton_diagonal, "launch_for", lambda *_, **__: launch)

    with numpy.errstate(all="ignore"):
        yield force


@pytest.fixture
def scan(way, chunks):
    """`pararnn.scan` bound to one backend and one size of chunks."""
    name, size = WAYS[way]
    if name == "torch":
        chunks(size)
    else:
        pytest.importorskip(name)

    def run(transition, bias, initial=None, **options):
        return pararnn.scans.scan(transition, bias, initial, backend=name, **options)

    return run


@pytest.fixture
def oracle():
    """The definition: one step after the other, each segment on its own, with autograd through it."""

    def walk(transition, bias, initial=None, *, reverse=False, cu_seqlens=None):
        if cu_seqlens is None:
            return reference.walk(transition, bias, initial, reverse=reverse)
        bounds = cu_seqlens.tolist()
        parts = []
        for segment, (low, high) in enumerate(itertools.pairwise(bounds)):
            maps = transition.map(lambda leaf, low=low, high=high: leaf[:, low:high])
            start = None if initial is None else initial[segment : segment + 1]
            parts.append(reference.walk(maps, bias[:, low:high], start, reverse=reverse))
        return torch.cat(parts, dim=1) if parts else torch.zeros_like(bias)

    return walk


@pytest.fixture
def same_gradients(oracle, tolerance):
    """Assert that `scan` and the oracle agree on the gradients of everything under random weights of the states."""

    def check(scan, case, *, weight=None, **options):
        found, wanted = case.requiring_grad(), case.requiring_grad()
        states = scan(found.transition, found.bias, found.initial, **options)
        if weight is None:
            weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(99), dtype=states.dtype)
        expected = oracle(wanted.transition, wanted.bias, wanted.initial, **options)
        got = torch.autograd.grad(states, found.tensors, weight)
        # Without a step nothing is computed, and autograd has no graph to walk back through.
        want = torch.autograd.grad(expected, wanted.tensors, weight, allow_unused=True) if expected.requires_grad else [None] * len(wanted.tensors)
        for one, other, tensor in zip(got, want, wanted.tensors, strict=True):
            torch.testing.assert_close(one, torch.zeros_like(tensor) if other is None else other, **tolerance["gradients"])

    return check
