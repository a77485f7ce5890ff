"""Faulty plugins, built and installed as any other: each costs its own offers, and nothing else."""

import json

import pytest

pytestmark = pytest.mark.integration

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"
dependencies = ["pararnn-core{bound}"]

[project.entry-points."pararnn"]
{name} = "{module}.plugin"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
"""
CELLS = """
from pararnn.hookspecs import hookimpl
from pararnn.specs import CellSpec

@hookimpl
def pararnn_register_cells():
    return [CellSpec(name="{cell}", target="{module}.plugin:Cell", summary="a rival", example="{module}.plugin:example")]
"""


@pytest.fixture(scope="module")
def everything(repository, install_plugin, tmp_path_factory):
    """The folder with the toy plugin, and with a broken, an incompatible and a duplicate one beside it."""
    target = install_plugin(repository / "tests" / "plugins" / "toy")
    plugins = {
        "broken-cells": ("", "import a_library_that_nobody_has"),
        "future-cells": (">=99", CELLS.format(cell="FutureCell", module="future_cells")),
        "rival-cells": ("", CELLS.format(cell="ToyCell", module="rival_cells")),
    }
    for name, (bound, source) in plugins.items():
        folder, module = tmp_path_factory.mktemp(name), name.replace("-", "_")
        (folder / module).mkdir()
        (folder / "pyproject.toml").write_text(PROJECT.format(name=name, module=module, bound=bound), encoding="utf-8")
        (folder / module / "__init__.py").write_text("", encoding="utf-8")
        (folder / module / "plugin.py").write_text(source, encoding="utf-8")
        install_plugin(folder, target)
    return target


def test_each_has_its_state_and_its_cause(everything, in_process):
    listed = json.loads(in_process("pararnn", "plugins", "--json", path=everything).stdout)
    states = {plugin["distribution"]: (plugin["state"], plugin["detail"]) for plugin in listed}
    assert states["broken-cells"][0] == "broken"
    assert "a_library_that_nobody_has" in states["broken-cells"][1]
    assert states["future-cells"][0] == "incompatible"
    assert "pararnn-core>=99" in states["future-cells"][1]
    assert {states[name][0] for name in ("pararnn-core", "recurrent-toys", "rival-cells")} == {"loaded"}


def test_the_faults_are_warned_about_once_each(everything, in_process):
    warnings = in_process("pararnn", "plugins", path=everything).stderr
    assert [warnings.count(f"of {name} 1.0 is") for name in ("broken-cells", "future-cells", "rival-cells")] == [1, 1, 0]


def test_the_rest_is_verified_as_before(everything, in_process):
    result = in_process("pararnn", "verify", "recurrent-toys:ToyCell", "upper_pairs", "diagonal", "--json", path=everything)
    assert json.loads(result.stdout)["ok"]


def test_a_name_that_two_offer_is_refused_with_both_full_names(everything, in_process):
    result = in_process("python", "-c", "from pararnn import ToyCell", path=everything, check=False)
    assert result.returncode != 0
    assert "'recurrent-toys:ToyCell' or 'rival-cells:ToyCell'" in result.stderr


def test_the_full_name_of_a_duplicate_means_one_of_them(everything, in_process):
    code = "import pararnn; print(pararnn.cells['recurrent-toys:ToyCell'].load().__module__)"
    assert in_process("python", "-c", code, path=everything).stdout.strip() == "recurrent_toys.cell"


def test_verifying_the_rival_names_what_it_lacks_and_ends_with_status_1(everything, in_process):
    result = in_process("pararnn", "verify", "rival-cells:ToyCell", "--json", path=everything, check=False)
    assert result.returncode == 1
    assert "rival_cells.plugin:" in json.loads(result.stdout)["reports"][0]["results"][0]["detail"]


def test_strict_mode_refuses_them(everything, in_process):
    result = in_process("python", "-c", "import pararnn; pararnn.cells", path=everything, check=False, PARARNN_STRICT="1")
    assert result.returncode != 0
    assert "PARARNN_STRICT is set" in result.stderr


def test_disabled_they_are_not_even_warned_about(everything, in_process):
    names = "broken-cells,future-cells,rival-cells"
    result = in_process("python", "-c", "from pararnn import ToyCell; print(ToyCell.__module__)", path=everything, PARARNN_DISABLE_PLUGINS=names)
    assert result.stdout.strip() == "recurrent_toys.cell"
    assert result.stderr == ""
