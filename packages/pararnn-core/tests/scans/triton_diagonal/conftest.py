"""What only the kernels in Triton can get wrong: tiles, groups, widths, strides, half precision, and products that say too little."""

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.selection import Request, select


@pytest.fixture
def device(place, request):
    """Where the test runs, with the launch of its place."""
    launch, device = place
    try:
        select(Request.of("scan/diagonal", device=device), "triton")
    except BackendError as error:
        pytest.skip(f"backend triton cannot serve here: {str(error).partition(chr(10))[0]}")
    if launch is not None:
        request.getfixturevalue("launches")(launch)
    return device


@pytest.fixture
def decaying(device):
    """Maps in (0, 1), terms, initial states, and a gradient of the states."""

    def make(rows, length, size, *, dtype=torch.float64, segments=1):
        numbers = torch.Generator().manual_seed(rows + length + size)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        maps = torch.rand(rows, length, size, generator=numbers, dtype=wide)
        others = [torch.randn(rows, count, size, generator=numbers, dtype=wide) for count in (length, segments, length)]
        return [tensor.to(dtype).to(device) for tensor in (maps, *others)]

    return make
