"""What tests of kernels share: one folder for the libraries of a module."""

import sys
from pathlib import Path

import pytest

# Under importlib mode test modules cannot import their neighbours; this makes `stepwise_engine` importable.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """One folder for all tests of a module: each library takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARARNN_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield
