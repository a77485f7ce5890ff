"""Fixtures of the tests that cross packages. What packages' tests share with them is in pararnn.conformance.pytest_plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Under importlib mode test modules cannot import their neighbours; this makes `min_gru` importable.
sys.path.append(str(Path(__file__).parent))


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


@pytest.fixture(scope="module")
def install_plugin(tmp_path_factory):
    """Build the distribution in a folder and install it, without its dependencies, into a folder that goes on PYTHONPATH; returns that."""

    def install(folder: Path, target: Path | None = None) -> Path:
        target = tmp_path_factory.mktemp("installed") if target is None else target
        # Built from a copy: some build backends leave files beside the sources.
        source = shutil.copytree(folder, tmp_path_factory.mktemp("source") / folder.name)
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(target))
        subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
        return target

    return install


@pytest.fixture
def in_process(tmp_path):
    """Run `python ...` or `pararnn ...` in a process of its own, with the folder `path` on PYTHONPATH and no other environment of pararnn."""

    def run(program: str, *arguments: str, path: Path | None = None, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["-c", "from pararnn.cli import main; main()"] if program == "pararnn" else []
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PARARNN_") and name != "PYTHONPATH"}
        environ |= {"XDG_CACHE_HOME": str(tmp_path), **({} if path is None else {"PYTHONPATH": str(path)}), **variables}
        result = subprocess.run([sys.executable, *command, *arguments], capture_output=True, text=True, check=False, env=environ, cwd=tmp_path)
        if check:
            assert result.returncode == 0, result.stderr
        return result

    return run
