"""The backends that need no compiler of their own, held to the definition by the kit of the core."""

import pytest
import torch

from pararnn.conformance import parametrize_with_checks
from pararnn.conformance.op_examples import calls, with_examples
from pararnn_s4.plugin import OPS


@parametrize_with_checks(*(f"s4/{op}:{backend}" for op in OPS for backend in ("naive", "blocked")), "s4/cauchy:numba")
def test_conformance(check):
    check()


@pytest.mark.parametrize("op", OPS)
def test_examples_are_the_same_numbers_in_both_precisions_and_others_for_another_seed(op):
    (entry,) = with_examples(f"s4/{op}")
    for double, single, other in zip(calls(entry, "complex128"), calls(entry, "complex64"), calls(entry, "complex128", seed=1), strict=True):
        for key, tensor in double.tensors().items():
            torch.testing.assert_close(single.tensors()[key], tensor, check_dtype=False, rtol=1e-6, atol=1e-6)
            assert not torch.equal(other.tensors()[key], tensor)
