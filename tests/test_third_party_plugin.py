"""A plugin of other people, built and installed as they would, with its cell and its structure: no line of the core is for it."""

import json
import re

import pytest

pytestmark = pytest.mark.integration

SAME_CLASS = """
from pararnn import ParaRNN, ToyCell
import pararnn, recurrent_toys.cell, torch
assert ToyCell is recurrent_toys.cell.ToyCell
assert "ToyCell" in pararnn.cells
print(tuple(ParaRNN(ToyCell(3, 5))(torch.randn(2, 100, 3)).shape))
"""
OWN_STRUCTURE = """
import torch, pararnn
from recurrent_toys.structure import UpperPairs
weight = torch.tensor([0.9, 0.5, 0.0, 0.7]).unsqueeze(-1)
step = lambda state, drive: torch.tanh(UpperPairs(weight).apply(state) + drive)
drive, start = torch.randn(2, 300, 2), torch.zeros(2, 2)
result = pararnn.solve(step, UpperPairs, drive, start, config=pararnn.NewtonConfig(interval=8))
walked = pararnn.solve(step, UpperPairs, drive, start, config=pararnn.NewtonConfig(interval=300))
torch.testing.assert_close(result.states, walked.states, rtol=1e-5, atol=1e-5)
print(result.status.name)
"""


@pytest.fixture(scope="module")
def toy(repository, install_plugin):
    """The folder into which the toy plugin is installed."""
    return install_plugin(repository / "tests" / "plugins" / "toy")


def test_the_plugin_is_listed_with_what_it_offers(toy, in_process):
    listed = json.loads(in_process("pararnn", "plugins", "--json", path=toy).stdout)
    (plugin,) = [plugin for plugin in listed if plugin["distribution"] == "recurrent-toys"]
    assert plugin["state"] == "loaded"
    assert plugin["offers"] == {"cells": ["ToyCell"], "structures": ["upper_pairs"]}


def test_its_cell_is_a_name_of_pararnn_and_is_solved(toy, in_process):
    assert in_process("python", "-c", SAME_CLASS, path=toy).stdout.strip() == "(2, 100, 5)"


def test_its_structure_serves_the_solver(toy, in_process):
    assert in_process("python", "-c", OWN_STRUCTURE, path=toy).stdout.strip() == "CONVERGED"


@pytest.mark.parametrize("name", ["ToyCell", "upper_pairs"])
def test_it_keeps_the_contract(toy, in_process, name):
    result = in_process("pararnn", "verify", name, "--json", path=toy, check=False)
    failed = [one for report in json.loads(result.stdout)["reports"] for one in report["results"] if one["verdict"] == "failed"]
    assert failed == []
    assert result.returncode == 0


def test_without_it_its_cell_is_unknown(in_process):
    result = in_process("python", "-c", "from pararnn import ToyCell", check=False)
    assert result.returncode != 0
    assert "no installed plugin offers a cell named 'ToyCell'" in result.stderr


def test_no_file_of_the_packages_knows_it(repository):
    sources = [path for path in (repository / "packages").rglob("*") if path.suffix in {".py", ".toml", ".md"} and path.is_file()]
    assert sources
    assert [path.name for path in sources if re.search("recurrent.toys", path.read_text(encoding="utf-8"))] == []
