"""Numbers at the ends of the range: what is not finite spoils nothing else, and products that leave it are walked again."""

import pytest
import torch
from triton_launches import REAL, all_places, everywhere, quiet_about_maxima

from pararnn.scans import scan
from pararnn.scans.launches import Launch, in_chain
from pararnn.structures.diagonal import Diagonal

pytestmark = quiet_about_maxima


@everywhere
@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
def test_what_is_not_finite_spoils_its_own_future_and_nothing_else(decaying, bad):
    tensors = decaying(1, 29, 3)
    clean = scan(Diagonal(tensors[0]), tensors[1], backend="triton")
    tensors[1][0, 20, 2] = bad
    spoilt = scan(Diagonal(tensors[0]), tensors[1], backend="triton")
    assert not spoilt[0, 20:, 2].isfinite().any()
    clean[0, 20:, 2] = spoilt[0, 20:, 2] = 0
    torch.testing.assert_close(spoilt, clean, rtol=1e-12, atol=1e-12)


@everywhere
@pytest.mark.parametrize("factor", [1e-30, 1e30], ids=["underflow", "overflow"])
def test_products_that_leave_the_range_of_numbers_are_walked_again(decaying, oracle, device, factor):
    # The state goes down to 1e-30 and up again, or up and down; the products of maps go twice as far, out of the range of single precision.
    start = torch.full((1, 2), 1 / factor, device=device)
    maps = torch.ones(1, 41, 2, device=device)
    maps[:, 10:12], maps[:, 13:15] = factor, 1 / factor
    maps[:, 30:32], maps[:, 33:35] = factor, 1 / factor
    states = scan(Diagonal(maps), torch.zeros_like(maps), start, backend="triton")
    torch.testing.assert_close(states, oracle(Diagonal(maps), torch.zeros_like(maps), start), rtol=1e-5, atol=0)


@pytest.mark.parametrize("place", [place for place in all_places if place.id.startswith(REAL)])
def test_a_state_that_was_too_small_for_products_is_right_when_it_grows_again(oracle, device):
    # In the first group it falls to 1e-30, by maps whose product is too small; then it grows by 1e10 a tile, which no tile alone would notice.
    maps = torch.ones(1, 80, 2, device=device)
    maps[:, :2] = 1e-30
    maps[:, 17:80:16] = 1e10
    start = torch.full((1, 2), 1e30, device=device)
    states = scan(Diagonal(maps), torch.zeros_like(maps), start, backend="triton")
    torch.testing.assert_close(states, oracle(Diagonal(maps), torch.zeros_like(maps), start), rtol=1e-5, atol=0)


AS_LAUNCHED = [
    pytest.param((Launch(variant="chain", block_time=128, block_state=1, groups=2, group=4), "cpu"), id="chain"),
    pytest.param((in_chain(1000, itemsize=4), "cuda"), id="chain, gpu", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("place", AS_LAUNCHED)
def test_maps_that_grow_and_shrink_in_turn_leave_nothing_to_walk_again(oracle, device, monkeypatch):
    from pararnn.scans.kernels import triton_walk

    class Recorded:
        marks = None

        def __getitem__(self, grid):
            def launch(*arguments, **kinds):
                # They stand before four counts.
                self.marks = arguments[-5]

            return launch

    recorded = Recorded()
    monkeypatch.setattr(triton_walk, "walk_kernel", recorded)
    maps = torch.full((1, 1000, 2), 3.0, device=device)
    maps[:, 1::2] = 1 / 3.1
    bias = torch.ones_like(maps)
    states = scan(Diagonal(maps), bias, backend="triton")
    assert recorded.marks.eq(-1).all()
    torch.testing.assert_close(states, oracle(Diagonal(maps), bias), rtol=1e-5, atol=0)
