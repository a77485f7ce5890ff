"""Fixtures of the tests that cross packages. What packages' tests share with them is in pararnn.conformance.pytest_plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def wheels() -> Path:
    """The folder with a freshly built wheel of every package."""
    folder = os.environ.get("PARARNN_WHEELS")
    if folder is None:
        pytest.skip("needs built wheels; run nox -s integration")
    return Path(folder)
