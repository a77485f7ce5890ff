"""Steps that mix channels, and widths that are no number of parts, are refused by name."""

import pytest
import torch
from toy_cells import loop
from wide_cells import Wide

from pararnn import NewtonConfig, ParaRNN
from pararnn.compiler import catalogue
from pararnn.solver.api import cell_problem


def obstacles(body, size, width, parts=2):
    cell = Wide(body, size, parts)
    found = catalogue.compiled(cell_problem(cell, torch.randn(1, 3, width, dtype=torch.float64), NewtonConfig()))
    assert isinstance(found, tuple), str(found.program)
    return found


WRONG = {
    "a cut inside a part": lambda cell, h, g: h * g[..., 2:6],
    "two cuts inside parts": lambda cell, h, g: h * torch.cat((g[..., 2:4], g[..., :2]), -1),
    "uneven parts": lambda cell, h, g: h * torch.cat(g.split([3, 5], -1), -1)[..., :4],
    "every other number": lambda cell, h, g: h * g[..., ::2],
    "numbers of a channel next to each other": lambda cell, h, g: h * g.unflatten(-1, (4, 2))[..., 0],
    "another view": lambda cell, h, g: h * g.view(-1, 4, 2).sum(-1),
    "one channel": lambda cell, h, g: h * g[..., :1],
    "one number": lambda cell, h, g: h * g.reshape(-1, 8)[0, 0],
    "one row": lambda cell, h, g: h * g.reshape(-1, 8)[:1, :4],
    "reversed": lambda cell, h, g: h * g.flip(-1)[..., :4],
    "rolled": lambda cell, h, g: h * torch.roll(g, 1, -1)[..., :4],
    "sum of all": lambda cell, h, g: h * g.sum(-1, keepdim=True),
    "sum over rows": lambda cell, h, g: h * g.reshape(-1, 8).sum(0)[:4],
    "softmax": lambda cell, h, g: h * torch.softmax(g, -1)[..., :4],
    "maximum of the parts": lambda cell, h, g: h * g.amax(-1, keepdim=True),
    "shifted parameter": lambda cell, h, g: h * (g + torch.cat((cell.bias[2:], cell.bias[:2])))[..., :4],
    "joined to half": lambda cell, h, g: h * torch.cat((h[..., :2], g[..., 2:4]), -1),
    "joined rows": lambda cell, h, g: h * torch.cat((g[..., :4], g[..., 4:]), 0).view(2, -1, 4)[0],
    "a channel for another": lambda cell, h, g: (
        h * g.reshape(-1, 8).unflatten(-1, (2, 4)).transpose(1, 2)[:, :, 0].unsqueeze(1).expand(-1, 4, 4)[:, :, 0].reshape(h.shape)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_mixes_channels_is_refused_with_its_line(name):
    found = obstacles(WRONG[name], 4, 8)
    assert any("test_refusals.py, line" in one for one in found), found


def test_a_cut_through_a_part_is_named():
    (found,) = obstacles(WRONG["a cut inside a part"], 4, 8)
    assert found.startswith("a slice (aten.slice.Tensor) takes (rows, 4) of (rows, 8) (test_refusals.py, line ")
    assert "the state has 4 channels" in found
    assert "taken apart as wholes" in found


@pytest.mark.parametrize("width", [9, 4 * 17], ids=["no whole number", "too many"])
def test_a_width_that_is_no_number_of_parts_is_refused(width):
    assert any(f"({width},) numbers a step" in one for one in obstacles(lambda cell, h, g: h * g[..., :4], 4, width))


def test_a_parameter_with_too_many_numbers_is_refused():
    assert any("'bias' of shape (68,)" in one for one in obstacles(lambda cell, h, g: h * g[..., :4] + cell.bias[:4], 4, 8, parts=17))


def test_writing_into_a_leaf_is_refused():
    for body in (
        lambda cell, h, g: h * g.mul_(2)[..., :4],
        lambda cell, h, g: h * g[..., :4].mul_(2),
        lambda cell, h, g: h * g.detach().mul_(2)[..., :4],
    ):
        assert any("in-place" in one or "in place" in one for one in obstacles(body, 4, 8))


def test_the_solver_falls_back_and_says_why(engine):
    layer = ParaRNN(Wide(WRONG["every other number"], 4), config=NewtonConfig())
    x = torch.randn(1, 1500, 8, dtype=torch.float64)
    output, (result,) = layer.solve(x)
    assert result.backend == "torch"
    assert engine.solves == 0
    torch.testing.assert_close(output, loop(layer.layers[0], x), rtol=1e-6, atol=1e-6)
