"""What tests of pararnn and of its plugins share: the `tolerance` fixture, `--require-backend`, and the `gpu` marker.

Switched on by `-p pararnn.conformance.pytest_plugin`, on the command line or in `addopts`. Nothing of it imports torch before a test needs it.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pararnn.errors import PluginError, PluginWarning
from pararnn.findings import Outcome
from pararnn.probing import probe
from pararnn.registry import installed

if TYPE_CHECKING:
    from pararnn.conformance.tolerances import Kind, Tolerance

# A first compilation on a slow machine takes most of it.
PROBE_SECONDS = 180.0


@pytest.fixture
def tolerance(request: pytest.FixtureRequest) -> dict[Kind, Tolerance]:
    """Keyword arguments of `assert_close` for `"states"` and `"gradients"`, for the test's argument `dtype`; float64 where it has none."""
    import torch

    from pararnn.conformance.tolerances import KINDS, tolerance

    dtype = request.getfixturevalue("dtype") if "dtype" in request.fixturenames else torch.float64
    return {kind: tolerance(dtype, kind) for kind in KINDS}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--require-backend`."""
    parser.addoption(
        "--require-backend",
        action="append",
        default=[],
        metavar="NAME",
        help="fail unless an installed plugin offers backend NAME and it works, and fail tests that skip for want of it; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known to whoever does not list it in a configuration of their own."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped without one")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop before the first test when a required backend is missing or does not work."""
    if hasattr(session.config, "workerinput"):
        return
    for name in required_backends(session.config):
        if (obstacle := obstacle_to(name)) is not None:
            raise pytest.UsageError(f"--require-backend {name}: {obstacle}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` on a machine without one."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for want of a required backend into a failure."""
    report = yield
    fail_if_required(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for a module that skips as a whole."""
    report = yield
    fail_if_required(report, collector.config)
    return report


def required_backends(config: pytest.Config) -> list[str]:
    """The names given to `--require-backend`."""
    return list(config.getoption("--require-backend"))


def fail_if_required(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Make `report` a failure if it is a skip whose reason is that a required backend, or the module of that name, is absent."""
    if not (report.skipped and isinstance(report.longrepr, tuple)):
        return
    reason = report.longrepr[2]
    for name in required_backends(config):
        if re.search(rf"\b(import|backend)\s+['\"]?{re.escape(name)}\b", reason):
            report.outcome = "failed"
            report.longrepr = f"--require-backend {name}: a test that was skipped should have run ({reason})"
            return


def obstacle_to(backend: str) -> str | None:
    """Why `backend` cannot be used here: nobody offers it, or one of its probes does not pass; None when all of them do."""
    try:
        registry = installed()
    except (PluginError, PluginWarning) as error:
        return f"the installed plugins do not all load: {error}"
    offers = [entry for op in registry.backend_ops for entry in registry.backends(op).values() if entry.name == backend]
    if not offers:
        known = sorted({entry.name for op in registry.backend_ops for entry in registry.backends(op).values()})
        return f"no installed plugin offers a backend of that name; offered are {', '.join(known) or 'none'}"
    for entry in {entry.spec.probe: entry for entry in offers}.values():
        finding = probe(entry, timeout=PROBE_SECONDS)
        if finding.outcome is not Outcome.OK:
            return f"its probe for {entry.spec.op} says {finding.outcome.value}: {finding.detail}"
    return None
