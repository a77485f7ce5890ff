import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from pararnn.cli import main
from pararnn.distributions import discover
from pararnn.registry import Registry, using
from pararnn.structures import Diagonal


class ToyCell(nn.Module):
    structure, state_size = Diagonal, 3

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.9, 0.9, 3, dtype=torch.float64))

    def initial_state(self, batch):
        return self.weight.new_zeros(batch, 3)

    def drive(self, x):
        return x

    def step(self, state, drive):
        return torch.tanh(self.weight * state + drive)

    def readout(self, states):
        return states


class FlippedCell(ToyCell):
    def drive(self, x):
        return x.flip(1)


@pytest.fixture
def verify(candidate, cell, objects):
    """Run `pararnn verify` beside a plugin that offers a good cell, a wrong one, and one whose module is missing."""
    objects.ToyCell, objects.FlippedCell = ToyCell, FlippedCell

    def example(made):
        def make(batch, length, *, seed):
            return made(), torch.randn(batch, length, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

        return make

    objects.example = example(ToyCell)
    cells = [cell("ToyCell"), cell("FlippedCell", target="fake_objects:FlippedCell"), cell("LostCell", target="lost_module:LostCell")]
    cells[1] = type(cells[1])(name="FlippedCell", target="fake_objects:FlippedCell", summary="a toy", example="fake_objects:flipped_example")
    objects.flipped_example = example(FlippedCell)
    core = [one for one in discover() if one.distribution == "pararnn-core"]
    registry = Registry.of([*core, candidate(pararnn_register_cells=cells)], environ={})

    def run(*arguments):
        with using(registry):
            return CliRunner().invoke(main, ["verify", *arguments])

    return run


def test_a_good_cell_ends_with_status_0_and_a_table(verify):
    result = verify("ToyCell")
    assert result.exit_code == 0, result.output
    assert "cell ToyCell of toy-cells 1.0" in result.stdout
    assert "step_broadcasts" in result.stdout


def test_a_wrong_cell_ends_with_status_1_and_its_fault(verify):
    result = verify("FlippedCell", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert not document["ok"]
    messages = {one["check"]: one["detail"] for one in document["reports"][0]["results"] if one["verdict"] == "failed"}
    assert messages["drive_is_causal"].startswith("the future leaks into the past")


def test_json_is_all_there_is_on_both_streams(verify):
    result = verify("diagonal", "dense", "--json", "--seed", "3")
    assert result.exit_code == 0
    assert [report["seed"] for report in json.loads(result.stdout)["reports"]] == [3, 3]
    assert result.stderr == ""


def test_a_backend_is_named_with_its_operation(verify):
    result = verify("scan/dense:torch", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["reports"][0]["subject"].startswith("backend scan/dense:torch of pararnn-core")


def test_a_cell_whose_module_is_missing_fails_and_the_others_are_verified(verify):
    result = verify("LostCell", "block_diagonal", "--json")
    assert result.exit_code == 1
    lost, fine = json.loads(result.stdout)["reports"]
    assert (lost["ok"], fine["ok"]) == (False, True)
    assert "lost_module" in lost["results"][0]["detail"]


def test_an_unknown_name_is_a_sentence_with_those_that_are_close_and_status_2(verify):
    result = verify("ToyCel")
    assert result.exit_code == 2
    assert "ToyCell" in result.stderr


def test_a_name_like_no_other_brings_no_list_of_names(verify):
    result = verify("Xyzzy")
    assert result.exit_code == 2
    assert "pararnn plugins" in result.stderr
    assert "ToyCell" not in result.stderr


def test_all_means_every_cell_structure_and_backend(verify, monkeypatch):
    monkeypatch.setattr("pararnn.conformance.subjects.Subject.checks", lambda self, seed=0: {})
    document = json.loads(verify("all", "--json").stdout)
    subjects = [report["subject"].split(" of ")[0] for report in document["reports"]]
    assert {"cell ToyCell", "structure dense", "backend solve:torch"} <= set(subjects)


def test_one_cause_is_printed_once_in_full_width(verify, objects):
    def example(batch, length, *, seed):
        raise ValueError("no samples today")

    objects.flipped_example = example
    result = verify("FlippedCell")
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())
    assert shown.count("no samples today") == 1
    assert "1 failed" in shown
    assert shown.count("the check 'example' failed") == 1
    assert "not run: protocol, step_broadcasts, " in shown


def test_names_of_checks_are_whole_at_eighty_columns(verify, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = verify("ToyCell").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "drive_takes_one_sample_at_a_time" in shown
