"""What surrounds a backend while it computes."""

import pytest
import torch

from pararnn.scans.dispatch import full_precision


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_device_without_autocast_has_none_to_switch_off(device):
    matrix = torch.ones(2, 2, device=device)
    with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(matrix):
        assert (matrix @ matrix).dtype == torch.float32
