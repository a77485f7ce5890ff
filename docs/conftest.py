"""Every Python block of these pages runs, top to bottom, one page in one namespace and in an empty folder of its own.

- An `output` block holds what the Python block before it printed; `...` stands for anything.
- A Python or TOML block that begins with `# file: PATH` is that file: it is written below the page's folder, whose `src` can be imported from.
- Invisible blocks have `PAGE`, the text of the page, to hold its tables to the code.
- `install_project()`, for invisible blocks, makes a plugin written that way known as `pip install -e .` would.
"""

import contextlib
import doctest
import importlib
import io
import os
import re
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

os.environ["MPLBACKEND"] = "Agg"
RUN = PythonEvaluator()
SAME = doctest.OutputChecker()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FILE = re.compile(r"# file: (\S+)\n")


def pytest_configure(config):
    # The compiler looks at every tensor it meets, also at those that have no gradient to show.
    config.addinivalue_line("filterwarnings", "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def run_python(example):
    if FILE.match(example.parsed):
        write_file(example)
        return
    example.namespace["PAGE"] = example.document.text
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            RUN(example)
    finally:
        example.namespace["_printed"] = printed.getvalue()


def write_file(example):
    match = FILE.match(example.parsed)
    if match is None:
        return
    path = Path(match[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(example.parsed[match.end() :], encoding="utf-8")
    importlib.invalidate_caches()


def compare_output(example):
    wanted, printed = textwrap.dedent(str(example.parsed)), example.namespace.get("_printed", "")
    if SAME.check_output(wanted, printed, FLAGS):
        return None
    return f"the page shows\n{textwrap.indent(wanted, '    ')}\nand the block before it printed\n{textwrap.indent(printed, '    ')}"


def install_project():
    """What an editable install leaves behind: metadata with the entry points of `pyproject.toml`."""
    from pararnn import registry

    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = Path("src") / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n{requires}", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in entries.items()) for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    importlib.invalidate_caches()
    registry.reset()


def enter(namespace):
    folder = tempfile.TemporaryDirectory(prefix="pararnn-docs-")
    namespace["_stack"] = stack = contextlib.ExitStack()
    stack.callback(folder.cleanup)
    stack.callback(os.chdir, os.getcwd())
    os.chdir(folder.name)
    # What a developer's own `pararnn doctor` found must not change what a page shows.
    patch = pytest.MonkeyPatch()
    stack.callback(patch.undo)
    patch.setenv("XDG_CACHE_HOME", folder.name)
    patch.syspath_prepend(str(Path(folder.name) / "src"))
    stack.callback(forget, set(sys.modules))
    namespace["install_project"] = install_project


def forget(modules):
    """Drop what a page imported from its own folder, and the plugins it installed."""
    from pararnn import findings, registry

    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and "pararnn-docs-" in str(sys.modules[name].__file__):
            del sys.modules[name]
    registry.reset()
    findings.forget()


def leave(namespace):
    namespace["_stack"].close()


PARSERS = (CodeBlockParser("python", run_python), CodeBlockParser("toml", write_file), CodeBlockParser("output", compare_output))

PAGES = Sybil(PARSERS, pattern="*.md", excludes=["_build/*"], setup=enter, teardown=leave)
pytest_collect_file = PAGES.pytest()


@pytest.fixture
def run_page():
    """Runs all examples of a page that lies elsewhere; returns how many there were."""

    def run(path):
        document = PAGES.parse(path)
        enter(document.namespace)
        try:
            return sum(example.evaluate() is None for example in document.examples())
        finally:
            leave(document.namespace)

    return run


def pytest_xdist_make_scheduler(config, log):
    """Blocks of a page build on each other, so a page stays with one process."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)
