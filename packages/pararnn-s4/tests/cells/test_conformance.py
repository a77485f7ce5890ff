"""The cells and their solver keep every promise of the core's protocol."""

import pytest

from pararnn.conformance import parametrize_with_checks, verify_cell
from pararnn_s4 import plugin
from pararnn_s4.cells.examples import para_s4, para_s4d

SOLVER = [spec for spec in plugin.pararnn_register_backends() if spec.op == "s4/solve"]


@parametrize_with_checks(*plugin.pararnn_register_cells(), *SOLVER)
def test_conformance(check):
    check()


@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("example", [para_s4d, para_s4])
def test_other_numbers_pass_as_well(example, length):
    verify_cell(*example(2, length, seed=5), seed=5).raise_for_failures()
