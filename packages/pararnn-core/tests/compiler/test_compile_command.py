"""`pararnn compile`: what it says of cells that compile, of those that do not, and of modules that are no cells."""

import json

import pytest
import torch
from click.testing import CliRunner
from toy_cells import DenseRNN, Tanh

from pararnn.cli import main
from pararnn.distributions import discover
from pararnn.registry import Registry, using


@pytest.fixture
def compile_(candidate, cell, objects):
    """Run `pararnn compile` beside a plugin whose cell is made by `build`."""

    def run(build, *arguments):
        def example(batch, length, *, seed):
            torch.manual_seed(seed)
            return build(), torch.randn(batch, length, 3, dtype=torch.float64)

        objects.example = example
        core = [one for one in discover() if one.distribution == "pararnn-core"]
        with using(Registry.of([*core, candidate(pararnn_register_cells=[cell("ToyCell")])], environ={})):
            return CliRunner().invoke(main, ["compile", "ToyCell", *arguments])

    return run


def test_a_step_that_compiles_is_said_to_with_what_it_reads(compile_):
    result = compile_(lambda: Tanh(3), "--json", "--dtype", "float64")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["compiles"]
    assert (document["operands"], document["captured"]) == (["element", "channel"], ["weight"])
    assert set(document["engines"]) == {"triton", "native"}
    assert all(engine["serves"] == (not engine["reasons"]) for engine in document["engines"].values())


def test_a_step_that_does_not_compile_is_told_every_obstacle(compile_):
    result = compile_(lambda: DenseRNN(3, 4))
    assert result.exit_code == 1
    assert "cannot be compiled" in result.stdout
    assert "mixes channels" in " ".join(result.stdout.split())
    document = json.loads(compile_(lambda: DenseRNN(3, 4), "--json").stdout)
    assert not document["compiles"]
    assert any("mm" in obstacle for obstacle in document["obstacles"])


def test_one_engine_can_be_asked(compile_):
    document = json.loads(compile_(lambda: Tanh(3), "--json", "--engine", "native").stdout)
    assert list(document["engines"]) == ["native"]


def test_the_program_can_be_seen_without_colours_when_piped(compile_):
    result = compile_(lambda: Tanh(3), "--show")
    assert "tanh" in result.stdout
    assert "pull (costate, state, o0, o1)" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_module_that_is_no_cell_is_refused(compile_):
    result = compile_(lambda: torch.nn.Linear(3, 3))
    assert result.exit_code == 2
    assert "there is no step to compile" in result.stderr


def test_an_unknown_cell_is_refused():
    result = CliRunner().invoke(main, ["compile", "Nobody"])
    assert result.exit_code == 2
    assert "Nobody" in result.stderr
