"""The laws of a structure, each held to its dense form: what scan, solver and adjoint take for granted."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError, sentence
from pararnn.scans.dispatch import structure_at, structure_path
from pararnn.structures.base import Structure

Example: TypeAlias = Callable[..., Structure]

LEAD = (3, 2)
# Divisible by 2, 3 and 4, so that structures of small blocks have members of this size.
STATE = 12
DTYPES = (torch.float64, torch.complex128)


def check_members(structure: type[Structure], example: Example) -> None:
    """The example gives members of the class, whose leaves start with the leading dimensions and hold all there is."""
    for dtype, (member,) in members(structure, example, 1):
        for index, leaf in enumerate(member.leaves()):
            if not isinstance(leaf, Tensor) or tuple(leaf.shape[: len(LEAD)]) != LEAD:
                shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
                raise ConformanceError(f"leaf {index} of maps with leading dimensions {LEAD} is {shape}; every leaf starts with them")
            if leaf.dtype != dtype:
                raise ConformanceError(f"leaf {index} is {leaf.dtype} where {dtype} was asked for; a leaf has the dtype of the states")
        again = structure.from_leaves(*member.leaves())
        if type(again) is not type(member):
            raise ConformanceError(f"from_leaves gives a {type(again).__name__}, the leaves came from a {type(member).__name__}; use cls")
        _same(again.to_dense(), member.to_dense(), "from_leaves(*leaves()) and the maps it was made from")
        _same(member.map(Tensor.clone).to_dense(), member.to_dense(), "map(clone) and the maps themselves")


def check_importable(structure: type[Structure], example: Example) -> None:
    """The class is found again by its import path and by pickle, as the scan operator and other processes look for it."""
    try:
        path = structure_path(structure)
        found = structure_at(path)
    except Exception as error:
        raise ConformanceError(f"the class cannot be found by its import path ({sentence(error)}); define it at module level") from error
    if found is not structure:
        raise ConformanceError(f"{path!r} is another class than this one; define it at module level under its own name, once")
    member = example(LEAD, STATE, seed=0, dtype=torch.float64)
    try:
        again = pickle.loads(pickle.dumps(member))
    except Exception as error:
        raise ConformanceError(f"members cannot be pickled ({sentence(error)}); keep tensors and plain values only") from error
    _same(again.to_dense(), member.to_dense(), "a member after pickle and itself")


def check_dense_form(structure: type[Structure], example: Example) -> None:
    """`to_dense` gives matrices `(*lead, state, state)`, also for no leading dimensions and for an empty batch."""
    for lead in (LEAD, (), (0, 2)):
        matrices = example(lead, STATE, seed=0, dtype=torch.float64).to_dense()
        if tuple(matrices.shape) != (*lead, STATE, STATE):
            raise ConformanceError(
                f"to_dense of maps with leading dimensions {lead} on {STATE} channels gives {tuple(matrices.shape)}; it must be "
                f"(*lead, state, state) = {(*lead, STATE, STATE)}"
            )


def check_composition(structure: type[Structure], example: Example) -> None:
    """`A.compose(B)` applies `B`, then `A`: the product of the matrices; and composition is associative."""
    for _, (late, middle, early) in members(structure, example, 3):
        _same(
            late.compose(early).to_dense(),
            late.to_dense() @ early.to_dense(),
            "late.compose(early).to_dense() and late.to_dense() @ early.to_dense()",
        )
        one = late.compose(middle).compose(early).to_dense()
        _same(one, late.compose(middle.compose(early)).to_dense(), "(A B) C and A (B C), so composition is not associative:")


def check_apply(structure: type[Structure], example: Example) -> None:
    """`apply` and `apply_add` are the matrix times the vector, and that plus the bias, also into a given tensor."""
    for dtype, (member,) in members(structure, example, 1):
        vector, bias = _vectors(dtype), _vectors(dtype)
        product = (member.to_dense() @ vector.unsqueeze(-1)).squeeze(-1)
        _same(member.apply(vector), product, "apply(v) and to_dense() @ v")
        _same(member.apply_add(vector, bias), product + bias, "apply_add(v, b) and to_dense() @ v + b")
        out = torch.full_like(bias, float("nan"))
        member.apply_add(vector, bias, out=out)
        _same(out, product + bias, "what apply_add(v, b, out=out) writes and to_dense() @ v + b")


def check_transpose(structure: type[Structure], example: Example) -> None:
    """`transpose` is that of the matrix without conjugation, `adjoint` the one with it, and both reverse a composition."""
    for _, (late, early) in members(structure, example, 2):
        _same(late.transpose().to_dense(), late.to_dense().mT, "transpose().to_dense() and to_dense().mT (no conjugation)")
        _same(late.adjoint().to_dense(), late.to_dense().mH, "adjoint().to_dense() and to_dense().mH")
        reversed_ = early.transpose().compose(late.transpose()).to_dense()
        _same(late.compose(early).transpose().to_dense(), reversed_, "(A B)^T and B^T A^T")


def check_leaves_are_linear(structure: type[Structure], example: Example) -> None:
    """Adding leaves adds maps, and leaves of zero are the zero map: tangents and masked maps are made that way."""
    for _, (first, second) in members(structure, example, 2):
        pairs = zip(first.leaves(), second.leaves(), strict=True)
        total = structure.from_leaves(*(one + other for one, other in pairs))
        remedy = "; hold the entries of the map, not angles or logarithms, in the leaves:"
        _same(total.to_dense(), first.to_dense() + second.to_dense(), f"the map of added leaves and the sum of the maps{remedy}")
        keep = torch.arange(LEAD[0] * LEAD[1]).reshape(LEAD) % 2 == 0
        masked = first.to_dense() * keep[..., None, None]
        _same(first.where(keep).to_dense(), masked, f"where(keep) and zero maps wherever keep is false{remedy}")


def check_leaf_cotangents(structure: type[Structure], example: Example) -> None:
    """`leaf_cotangents` gives the gradients of the leaves that autograd gives for `apply`."""
    for dtype, (member,) in members(structure, example, 1):
        vector, cotangent = _vectors(dtype), _vectors(dtype)
        truth = Structure.leaf_cotangents(member, vector, cotangent)
        for index, (found, expected) in enumerate(zip(member.leaf_cotangents(vector, cotangent), truth, strict=True)):
            _same(found, expected, f"leaf_cotangents and autograd's gradient of leaf {index}")


def check_linearize(structure: type[Structure], example: Example) -> None:
    """`linearize` of an affine map of the family gives its value and the map back."""
    for dtype, (member,) in members(structure, example, 1):
        state, bias = _vectors(dtype), _vectors(dtype)
        value, jacobian = structure.linearize(lambda inner, member=member, bias=bias: member.apply(inner) + bias, state)  # type: ignore[misc]
        _same(value, member.apply(state) + bias, "the value that linearize gives for A v + b and A v + b")
        if not isinstance(jacobian, structure):
            raise ConformanceError(f"linearize gives a {type(jacobian).__name__}, not a {structure.__name__}; use cls")
        _same(jacobian.to_dense(), member.to_dense(), "linearize of A v + b and A")
        _same(structure.of(member.apply, state).to_dense(), member.to_dense(), "of(A) and A")


def check_cost(structure: type[Structure], example: Example) -> None:
    """`cost` gives two positive numbers, composing at least as dear as applying."""
    compose, apply = structure.cost(STATE)
    if not 0 < apply <= compose:
        raise ConformanceError(
            f"cost({STATE}) is ({compose}, {apply}); it counts the multiplications to compose two maps and to apply one, 0 < apply <= compose"
        )


def members(structure: type[Structure], example: Example, count: int) -> Iterator[tuple[torch.dtype, tuple[Any, ...]]]:
    """For each dtype that has to work, `count` different members of the family."""
    for dtype in DTYPES:
        try:
            found = tuple(example(LEAD, STATE, seed=seed, dtype=dtype) for seed in range(count))
        except Exception as error:
            raise ConformanceError(
                f"the example fails for state_size {STATE} and {dtype} ({sentence(error)}); it takes (lead, state_size, *, seed, dtype) and is "
                f"asked for {STATE} channels, in real and complex dtypes"
            ) from error
        for member in found:
            if not isinstance(member, structure):
                raise ConformanceError(f"the example gives a {type(member).__name__}, not a {structure.__name__}")
        yield dtype, found


def _vectors(dtype: torch.dtype) -> Tensor:
    return torch.randn(*LEAD, STATE, dtype=dtype)


def _same(found: Tensor, expected: Tensor, what: str) -> None:
    if (how := difference(found, expected)) is not None:
        raise ConformanceError(f"{what} differ {how}")
