"""Plugins that exist only for a test: candidates with hooks written in place, and modules that records can name."""

import sys
import types
from pathlib import Path

import pytest

from pararnn.distributions import Candidate
from pararnn.hookspecs import hookimpl
from pararnn.specs import BackendSpec, CellSpec

# Under importlib mode test modules cannot import their neighbours; this makes `toy_cells` importable.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    """Keep what a developer's own `pararnn doctor` found out of the tests, and the tests' findings out of the developer's cache."""
    from pararnn import findings

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    findings.forget()
    yield
    findings.forget()


def make_candidate(name="toy", *, distribution="toy-cells", version="1.0", requires=(), **hooks):
    """A candidate whose hook module has `hooks`, each given by what it returns or by the function itself."""
    module = types.ModuleType(name)
    for hook, result in hooks.items():
        setattr(module, hook, hookimpl(result if callable(result) else _returning(result)))
    return Candidate(name=name, distribution=distribution, version=version, load=lambda: module, requires=tuple(requires))


def _returning(result):
    def hook():
        return result

    return hook


@pytest.fixture
def candidate():
    return make_candidate


@pytest.fixture
def cell():
    def make(name="ToyCell", target="fake_objects:ToyCell"):
        return CellSpec(name=name, target=target, summary="a toy", example="fake_objects:example")

    return make


@pytest.fixture
def backend():
    def make(
        name="fast", op="toy/op", priority=0, reasons="fake_objects:no_reasons", target="fake_objects:implementation", probe="fake_objects:probe"
    ):
        return BackendSpec(name=name, op=op, target=target, reasons=reasons, probe=probe, priority=priority, summary="a toy")

    return make


@pytest.fixture
def objects(monkeypatch):
    """The module `fake_objects`, which records of the fixtures name; tests add to it what they need."""
    module = types.ModuleType("fake_objects")
    module.ToyCell = type("ToyCell", (), {})
    module.no_reasons = lambda request: ()
    module.implementation = lambda: "served"
    monkeypatch.setitem(sys.modules, "fake_objects", module)
    return module
