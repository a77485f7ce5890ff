"""The shape of the repository, as far as a machine can see it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
MODULES = sorted(ROOT.glob("packages/*/src/**/*.py"))
KERNEL_LANGUAGES = ("cuda", "keops", "numba", "triton")
CORE = "pararnn"

# The roots under which machines keep people's files; a path below one of them works on one machine only.
MACHINE_PATH = re.compile(r"(?<![\w.~)}/-])/(?:work|tmp|root|home|Users|opt/wheels|opt/pypi)(?:/[\w.]|\b(?=[\s'\"`),;:]|$))")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def import_name(module: Path) -> str:
    """The package a source file belongs to: `pararnn_cfc` for packages/pararnn-cfc/src/pararnn_cfc/plugin.py."""
    parts = module.relative_to(ROOT).parts
    return parts[parts.index("src") + 1]


def is_kernel(module: Path) -> bool:
    return "kernels" in module.parts or any(language in module.stem.split("_") for language in KERNEL_LANGUAGES)


def references(module: Path) -> Iterator[str]:
    """Every package of ours that a file names: in imports, and in the "module:object" strings of plugin records."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            targets = [node.module or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"pararnn\w*(\.\w+)*:\w+(\.\w+)*", node.value):
            targets = [node.value.partition(":")[0]]
        else:
            continue
        yield from (target.partition(".")[0] for target in targets if target.startswith(CORE))


def entry_point_modules() -> list[str]:
    """The hook module of every package."""
    projects = (tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"] for package in PACKAGES)
    return [module for project in projects for module in project["entry-points"]["pararnn"].values()]


def heavy_imports_of(module: str) -> str:
    """What importing `module` in a new interpreter drags in, of the things that take seconds."""
    code = f"import sys, {module}; print(*sorted({{'torch', 'triton', 'numba', 'numpy', 'matplotlib'}} & set(sys.modules)))"
    sources = os.pathsep.join(str(package / "src") for package in PACKAGES)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": sources})
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def tracked_files() -> list[Path]:
    """The files that are or would be committed; of an unpacked archive, all of them."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode == 0:
        return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_package_names_only_itself_and_the_core(module):
    assert set(references(module)) <= {CORE, import_name(module)}


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_has_one_subject_and_so_few_lines(module):
    limit = 400 if is_kernel(module) else 250
    assert len(module.read_text(encoding="utf-8").splitlines()) <= limit


@pytest.mark.parametrize("module", [module for module in MODULES if "cli" not in module.parts], ids=name_of)
def test_only_the_command_line_prints(module):
    calls = [node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    assert [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"] == []


def test_no_module_is_a_drawer_for_everything():
    assert [name_of(path) for path in ROOT.glob("packages/**/*.py") if path.stem in {"utils", "util", "helpers", "misc"}] == []


def test_importing_pararnn_imports_nothing_heavy():
    assert heavy_imports_of("pararnn") == ""


@pytest.mark.parametrize("module", entry_point_modules())
def test_listing_a_plugin_imports_nothing_heavy(module):
    assert heavy_imports_of(module) == ""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_type_checking_finds_every_package(package):
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"$MYPY_CONFIG_FILE_DIR/packages/{package.name}/src" in configuration["tool"]["mypy"]["mypy_path"].split(":")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_tells_type_checkers_that_it_is_typed(package):
    assert len(list(package.glob("src/*/py.typed"))) == 1


def test_no_file_names_a_path_of_somebodys_machine():
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if MACHINE_PATH.search(line)]
    assert found == []
