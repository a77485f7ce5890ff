"""What tests of repeated solves share: whether each was recognised."""

import pytest

from pararnn.solver import again, api


@pytest.fixture
def recognised(monkeypatch):
    """Whether each solve so far was recognised."""
    seen, attempt = [], again.attempt

    def noting(*args, **options):
        found = attempt(*args, **options)
        seen.append(found[0] is not None)
        return found

    monkeypatch.setattr(api, "attempt", noting)
    return seen
