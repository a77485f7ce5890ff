import dataclasses
import sys
import types

import pytest
import torch

from pararnn.conformance import structure_checks, verify_structure
from pararnn.conformance.unserved import TwoLeaves, two_leaves
from pararnn.structures import BlockDiagonal, Dense, Diagonal, examples

CORE = {"diagonal": (Diagonal, examples.diagonal), "block_diagonal": (BlockDiagonal, examples.block_diagonal), "dense": (Dense, examples.dense)}


@pytest.fixture
def define(monkeypatch):
    """Make a variant of `Dense` with members replaced, in a module from which it can be imported, and the failures it has."""
    module = types.ModuleType("dense_variants")
    monkeypatch.setitem(sys.modules, "dense_variants", module)

    def failures(**members):
        variant = type("Variant", (Dense,), {"__module__": "dense_variants", "__qualname__": "Variant", **members})
        module.Variant = variant
        # The scan finds a class by its path, once; each variant has a path of its own.
        variant.__qualname__ = f"Variant{id(variant)}"
        setattr(module, variant.__qualname__, variant)
        return verify_structure(variant, lambda *args, **options: variant(examples.dense(*args, **options).matrix)).failures

    return failures


@pytest.mark.parametrize("name", CORE)
def test_the_structures_of_the_core_keep_the_laws(name):
    report = verify_structure(*CORE[name]).raise_for_failures()
    assert [result.check for result in report.results] == list(structure_checks())


def test_three_slots_keep_the_laws():
    three = BlockDiagonal.sized(3)

    def example(lead, state_size, *, seed, dtype):
        return three(torch.randn(*lead, 3, 3, state_size // 3, generator=torch.Generator().manual_seed(seed), dtype=dtype) / 3)

    assert verify_structure(three, example).failures == {}


def test_a_structure_of_two_leaves_keeps_the_laws():
    assert verify_structure(TwoLeaves, two_leaves).failures == {}


def test_a_structure_without_a_fault_passes(define):
    assert define() == {}


def test_a_composition_in_the_wrong_order_is_named(define):
    found = define(compose=lambda self, earlier: type(self)(earlier.matrix @ self.matrix))
    assert "late.compose(early)" in found["composition"]


def test_a_composition_that_is_not_associative_is_named(define):
    found = define(compose=lambda self, earlier: type(self)(self.matrix @ earlier.matrix + 1.0))
    assert "differ" in found["composition"]


def test_a_transpose_that_conjugates_is_named(define):
    assert "no conjugation" in define(transpose=lambda self: type(self)(self.matrix.mH))["transpose"]


def test_a_transpose_that_does_nothing_is_named_and_breaks_gradients(define):
    found = define(transpose=lambda self: self)
    assert "transpose" in found
    assert "the gradient of pararnn.scan by" in found["scan_gradients"]


def test_an_apply_add_that_ignores_its_target_is_named(define):
    found = define(apply_add=lambda self, vector, bias, out=None: self.apply(vector) + bias)
    assert "what apply_add(v, b, out=out) writes" in found["apply"]


def test_cotangents_without_conjugation_are_named(define):
    found = define(leaf_cotangents=lambda self, vector, cotangent: (cotangent.unsqueeze(-1) * vector.unsqueeze(-2),))
    assert "leaf_cotangents and autograd's gradient of leaf 0" in found["leaf_cotangents"]


def test_a_linearize_that_gives_rows_for_columns_is_named(define):
    def linearize(cls, step, state):
        value, jacobian = Dense.linearize(step, state)
        return value, cls(jacobian.matrix.mT)

    assert "linearize of A v + b and A differ" in define(linearize=classmethod(linearize))["linearize"]


def test_a_linearize_of_another_class_is_named(define):
    assert "linearize gives a Dense" in define(linearize=Dense.linearize)["linearize"]


def test_a_cost_of_nothing_is_named(define):
    assert "0 < apply <= compose" in define(cost=classmethod(lambda cls, size: (0, 0)))["cost"]


def test_a_class_inside_a_function_is_named():
    @dataclasses.dataclass(frozen=True, eq=False)
    class Hidden(Dense):
        pass

    found = verify_structure(Hidden, lambda *args, **options: Hidden(examples.dense(*args, **options).matrix)).failures
    assert "define it at module level" in found["importable"]


def test_leaves_that_hold_logarithms_are_named(define):
    found = define(
        to_dense=lambda self: self.matrix.exp(),
        apply=lambda self, vector: (self.matrix.exp() @ vector.unsqueeze(-1)).squeeze(-1),
    )
    assert "not angles or logarithms" in found["leaves_are_linear"]
