"""Every test that asks for a `form` runs on all of them."""

import sys
from pathlib import Path

import pytest

# Under importlib mode test modules cannot import their neighbours; this makes `cell_models` importable.
sys.path.append(str(Path(__file__).parent))

from cell_models import FORMS


@pytest.fixture(params=FORMS)
def form(request):
    return request.param
