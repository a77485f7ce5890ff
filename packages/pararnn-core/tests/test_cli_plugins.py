import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pararnn.cli import main
from pararnn.errors import ConfigError, PluginWarning
from pararnn.registry import Registry, using
from pararnn.specs import CommandSpec


@pytest.fixture
def run():
    """Run the command line in a registry of given candidates."""

    def make(*arguments, candidates=()):
        with using(Registry.of(candidates, environ={})):
            return CliRunner().invoke(main, arguments)

    return make


def command(name="greet", target="fake_objects:greet"):
    return CommandSpec(name=name, target=target, summary="Say hello.")


@pytest.mark.parametrize(
    "statement",
    [
        "import pararnn; pararnn.__version__; pararnn.cells; dir(pararnn)",
        "from pararnn.cli import main; main(['--help'], standalone_mode=False)",
        "from pararnn.cli import main; main(['plugins'], standalone_mode=False)",
        "from pararnn.cli import main; main(['plugins', '--json'], standalone_mode=False)",
        "from pararnn.selection import Request, select",
    ],
    ids=["package", "help", "plugins", "plugins-json", "selection"],
)
def test_torch_is_not_imported_by(statement):
    code = f"import sys\n{statement}\nheavy = {{'torch', 'numpy', 'numba'}} & set(sys.modules)\nsys.exit(', '.join(heavy) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr


def test_plugins_lists_states_and_offers(run, candidate, cell):
    with pytest.warns(PluginWarning):
        registry = Registry.of(
            [candidate("good", pararnn_register_cells=[cell()]), candidate("bad", pararnn_register_cells=lambda: 1 / 0)], environ={}
        )
    with using(registry):
        result = CliRunner().invoke(main, ["plugins"])
    assert result.exit_code == 0
    for text in ("good", "loaded", "ToyCell", "bad", "broken"):
        assert text in result.stdout


def test_plugins_prints_json_and_nothing_else(run, candidate, cell, backend):
    made = candidate(pararnn_register_cells=[cell()], pararnn_register_backends=[backend()])
    result = run("plugins", "--json", candidates=[made])
    assert json.loads(result.stdout) == [
        {
            "plugin": "toy",
            "distribution": "toy-cells",
            "version": "1.0",
            "state": "loaded",
            "detail": "",
            "offers": {"cells": ["ToyCell"], "backends": ["toy/op=fast"]},
        }
    ]


def test_help_shows_commands_of_plugins_without_importing_them(run, candidate):
    result = run("--help", candidates=[candidate(pararnn_register_commands=[command(target="no_such_module:greet")])])
    assert result.exit_code == 0
    assert "Say hello. (toy-cells)" in result.stdout
    assert "plugins" in result.stdout


def test_a_command_of_a_plugin_runs(run, candidate, objects):
    objects.greet = click.Command("greet", callback=lambda: click.echo("hello"))
    assert run("greet", candidates=[candidate(pararnn_register_commands=[command()])]).stdout == "hello\n"


def test_a_command_with_a_name_of_the_core_is_reached_by_its_distribution(run, candidate, objects):
    objects.greet = click.Command("greet", callback=lambda: click.echo("hello"))
    candidates = [candidate(pararnn_register_commands=[command("plugins")])]
    assert "toy-cells:plugins" in run("--help", candidates=candidates).stdout
    assert run("toy-cells:plugins", candidates=candidates).stdout == "hello\n"
    assert "toy-cells" in run("plugins", candidates=candidates).stdout


@pytest.mark.parametrize("value", [None, "not a command"], ids=["missing", "no-command"])
def test_a_command_that_is_not_there_is_one_sentence(run, candidate, objects, value):
    if value is not None:
        objects.greet = value
    result = run("greet", candidates=[candidate(pararnn_register_commands=[command()])])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert "toy-cells 1.0" in result.stderr
    assert "Traceback" not in result.output


def test_a_command_of_two_distributions_is_one_sentence(run, candidate):
    candidates = [candidate(name, distribution=f"dist-{name}", pararnn_register_commands=[command()]) for name in "ab"]
    result = run("greet", candidates=candidates)
    assert result.exit_code == 2
    assert "dist-a:greet" in result.stderr


def test_an_unknown_command_is_a_usage_error(run):
    result = run("plugin")
    assert result.exit_code == 2
    assert "No such command 'plugin'" in result.stderr


def test_an_error_of_pararnn_inside_a_command_is_one_sentence_on_stderr(run, candidate, objects):
    def fail():
        raise ConfigError("length must be at least 1, got 0; pass --length 64")

    objects.greet = click.Command("greet", callback=fail)
    result = run("greet", candidates=[candidate(pararnn_register_commands=[command()])])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "Error: length must be at least 1, got 0; pass --length 64\n")


def run_process(*arguments, **environ):
    code = "from pararnn.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=os.environ | environ, check=False)


@pytest.fixture
def broken_distribution(tmp_path):
    """A folder with a distribution whose hook module cannot be imported."""
    metadata = tmp_path / "torn_cells-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torn-cells\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pararnn]\ntorn = no_such_module\n")
    return os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))


def test_a_broken_plugin_is_told_once_on_stderr_and_json_stays_json(broken_distribution):
    done = run_process("plugins", "--json", PYTHONPATH=broken_distribution)
    assert done.returncode == 0
    assert {plugin["plugin"]: plugin["state"] for plugin in json.loads(done.stdout)}["torn"] == "broken"
    assert done.stderr.count("no_such_module") == 1
    assert done.stderr.startswith("Warning: plugin 'torn' of torn-cells 1.0 is broken")


def test_strict_mode_is_one_sentence_and_status_2(broken_distribution):
    done = run_process("plugins", PYTHONPATH=broken_distribution, PARARNN_STRICT="1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: plugin 'torn' of torn-cells 1.0 is broken")
    assert "Traceback" not in done.stderr


def test_version_is_that_of_the_core():
    import pararnn

    assert CliRunner().invoke(main, ["--version"]).stdout == f"pararnn, version {pararnn.__version__}\n"


def test_names_are_whole_at_eighty_columns(run, candidate, backend, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"kernel_{number}" for number in range(9)]
    made = candidate(distribution="distribution-name", pararnn_register_backends=[backend(name, op="family/operation_name") for name in names])
    shown = run("plugins", candidates=[made]).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for name in names:
        assert f"family/operation_name={name}" in shown
