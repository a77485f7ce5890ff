"""Whichever module a process imports first, the import succeeds: no module needs another that cannot be whole before it."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def named(source: Path, folder: Path) -> str:
    """The module in a file below `folder`: `pararnn.solver.api` for pararnn/solver/api.py, `pararnn.solver` for pararnn/solver/__init__.py."""
    parts = source.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(folders: Iterable[Path]) -> dict[str, ast.Module]:
    """Every module below folders that are on the path."""
    return {named(path, folder): ast.parse(path.read_text(encoding="utf-8")) for folder in folders for path in folder.glob("**/*.py")}


def imports(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """What runs when a module is imported: not what stands in functions, and not what only type checkers read."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from imports(ast.iter_child_nodes(node))


def packages_around(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def needs(module: str, tree: ast.Module, known: Iterable[str]) -> set[str]:
    """The modules that have to be whole before `module` is: those that it imports, and the packages these lie in, but for those it lies in itself."""
    found = set()
    for statement in imports(tree.body):
        origin = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
        for target in (f"{origin}{alias.name}" for alias in statement.names):
            found |= {target, *packages_around(target)}
    return found & set(known) - {module, *packages_around(module)}


def cycle(trees: dict[str, ast.Module]) -> list[str]:
    """Modules each of which needs the next, the last being the first; none where there is an order to import them in."""
    try:
        graphlib.TopologicalSorter({module: needs(module, tree, trees) for module, tree in trees.items()}).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def test_our_modules_can_be_imported_in_any_order():
    assert cycle(modules(ROOT.glob("packages/*/src"))) == []


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param({"p": "", "p.a": "from p import b", "p.b": "from p import a"}, {"p.a", "p.b"}, id="each other"),
        pytest.param({"p": "from p import a", "p.a": "import q.b", "q": "", "q.b": "import p.c", "p.c": ""}, {"p", "p.a", "q.b"}, id="a package"),
        pytest.param({"p": "from p import a", "p.a": "from p.b import X", "p.b": ""}, set(), id="its own package"),
        pytest.param({"a": "def f():\n    import b", "b": "import a"}, set(), id="when called"),
        pytest.param({"a": "if TYPE_CHECKING:\n    import b", "b": "import a"}, set(), id="for type checkers"),
        pytest.param({"a": "try:\n    import b\nexcept ImportError:\n    pass", "b": "import a"}, {"a", "b"}, id="in a block"),
    ],
)
def test_a_cycle_is_seen_where_there_is_one(sources, expected):
    assert set(cycle({module: ast.parse(source) for module, source in sources.items()})) == expected
