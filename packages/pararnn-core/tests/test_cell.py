"""Optional members of a cell, as fast as they are looked up and as right as `getattr`."""

import pytest
import torch
from toy_cells import Tanh

from pararnn.cell import optional

NAMES = ("state_bounds", "weight", "missing", "inner", "table", "own", "linearize", "drive")


class Wrapper(torch.nn.Module):
    """Hands on whatever it lacks."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("cell"), name)


@pytest.fixture
def cell():
    made = Tanh(3)
    made.inner = torch.nn.Linear(3, 3)
    made.register_buffer("table", torch.zeros(3))
    made.own = False
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrap", [lambda cell: cell, Wrapper], ids=["cell", "wrapper"])
def test_an_optional_member_is_what_getattr_gives(cell, wrap, name):
    wrapped = wrap(cell)
    expected = getattr(wrapped, name, "absent")
    found = optional(wrapped, name, "absent")
    assert found is expected or found == expected
