"""Small blocks that the tests of this folder share."""

import pytest
import torch

from pararnn_nanode import NANODE, BucketPath, DenseField, TrigPath

DIM = 4


@pytest.fixture(autouse=True)
def _float64():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


@pytest.fixture
def make_block():
    """A function that makes a block with moving weights and a moving bias; options are those of `NANODE`."""

    def make(*, path=None, span=(0.0, 1.0), **options):
        path = TrigPath((DIM, DIM), 2, span=span) if path is None else path
        return NANODE(DenseField(DIM, path, bias=TrigPath(DIM, 1, span=span, gain=1.0)), span=span, **options)

    return make


@pytest.fixture
def bucket_block():
    """A block whose weights jump in the middle of its span."""
    return NANODE(DenseField(DIM, BucketPath((DIM, DIM), 2)), 6)


@pytest.fixture
def state():
    """A state of three samples."""
    return torch.randn(3, DIM)
