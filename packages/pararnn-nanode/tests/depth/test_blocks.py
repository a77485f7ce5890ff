"""The correction by blocks solves the linear recurrence to second order in the length of a block."""

import pytest
import torch

from pararnn.structures import Dense
from pararnn_nanode.depth.blocks import Blockwise, Cut, Summed

STEPS, DIM = 2048, 4


def slopes():
    """A smooth path of matrices, the derivatives of a field along a solution."""
    t = torch.linspace(0, 1, STEPS + 1)[:-1]
    first, second = torch.randn(2, DIM, DIM)
    return first * torch.cos(3 * t)[:, None, None] + second * t[:, None, None]


def walked(matrices, residual, *, back):
    """`d[k+1] = (I + h J_k) d[k] + r[k]`, or the transposed recurrence from the end."""
    d, found = torch.zeros(2, DIM), []
    order = range(STEPS - 1, -1, -1) if back else range(STEPS)
    for k in order:
        if back:
            matrix = matrices[k + 1].mT if k + 1 < STEPS else torch.zeros(DIM, DIM)
        else:
            matrix = matrices[k]
        d = d + (d @ matrix.mT) / STEPS + residual[k]
        found.append(d)
    return torch.stack(found[::-1] if back else found)


@pytest.mark.parametrize("back", [False, True], ids=["forward", "backward"])
def test_twice_the_blocks_leave_a_quarter_of_the_error(back):
    matrices, residual = slopes(), torch.linspace(0, 3, STEPS).cos()[:, None, None] * torch.randn(1, 2, DIM)
    truth, errors = walked(matrices, residual, back=back), []
    for blocks in (8, 16, 32):
        cut = Cut.into(STEPS, blocks)
        slope = Dense(matrices[cut.middles].unsqueeze(1).expand(-1, 2, -1, -1) / cut.count)
        parts = torch.arange(1, cut.length + 1).view(1, -1, 1, 1).expand(cut.count, -1, 1, 1) / cut.length
        correction = Blockwise.of(cut, slope, parts)
        errors.append(float(((correction.apply_adjoint if back else correction.apply)(residual) - truth).abs().max() / truth.abs().max()))
    assert errors[0] < 0.1
    assert errors[1] < errors[0] / 2.5
    assert errors[2] < errors[1] / 2.5


@pytest.mark.parametrize("steps", [1, 2, 7, 16, 100])
@pytest.mark.parametrize("blocks", [1, 3, 16, 200])
def test_a_cut_covers_every_step_once_and_has_no_empty_block(steps, blocks):
    cut = Cut.into(steps, blocks)
    lengths = [last - first for first, last in zip(cut.bounds, cut.bounds[1:], strict=False)]
    assert sum(lengths) == steps
    assert min(lengths) >= 1
    assert max(lengths) == cut.length
    assert len(lengths) == cut.count <= max(blocks, 1)
    rows = torch.randn(steps, 3)
    torch.testing.assert_close(cut.join(cut.split(rows)), rows, rtol=0, atol=0)


def test_picards_correction_adds_up_all_residuals_before():
    residual = torch.randn(5, 2)
    torch.testing.assert_close(Summed().apply(residual)[3], residual[:4].sum(0))
    torch.testing.assert_close(Summed().apply_adjoint(residual)[3], residual[3:].sum(0))
