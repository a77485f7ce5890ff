import json

import pytest
import torch
from click.testing import CliRunner
from toy_cells import DiagonalGRU

from pararnn.cli import main
from pararnn.distributions import discover
from pararnn.registry import Registry, using


@pytest.fixture
def bench(candidate, cell, objects):
    """Run `pararnn bench` beside a plugin that offers a diagonal GRU."""

    def example(batch, length, *, seed):
        torch.manual_seed(seed)
        return DiagonalGRU(3, 4), torch.randn(batch, length, 3, dtype=torch.float64)

    objects.ToyCell, objects.example = DiagonalGRU, example
    core = [one for one in discover() if one.distribution == "pararnn-core"]
    registry = Registry.of([*core, candidate(pararnn_register_cells=[cell("ToyCell")])], environ={})

    def run(*arguments):
        with using(registry):
            return CliRunner().invoke(main, ["bench", *arguments, "--repeats", "1"])

    return run


def test_json_holds_one_row_for_each_length_and_nothing_else(bench):
    result = bench("ToyCell", "--length", "64", "--length", "8", "--batch", "2", "--json")
    report = json.loads(result.stdout)
    assert [(row["cell"], row["batch"], row["length"], row["state"]) for row in report["rows"]] == [("ToyCell", 2, 8, 4), ("ToyCell", 2, 64, 4)]
    assert all(row[key] > 0 for row in report["rows"] for key in row if key.startswith(("walk", "parallel")))
    assert report["machine"]["torch"] == torch.__version__


def test_the_table_names_the_cell_and_both_times(bench):
    result = bench("ToyCell", "--length", "32")
    assert result.exit_code == 0
    assert "ToyCell" in result.stdout
    assert "forward" in result.stdout


def test_the_plot_is_written_where_it_was_asked_for(bench, tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "ratios.png"
    assert bench("ToyCell", "--length", "32", "--plot", str(target)).exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_cell_is_named_in_one_sentence(bench):
    result = bench("NoSuchCell")
    assert result.exit_code == 2
    assert "NoSuchCell" in result.stderr


def test_the_backend_that_is_named_solves(bench):
    result = bench("ToyCell", "--length", "32", "--backend", "torch", "--json")
    assert [row["backend"] for row in json.loads(result.stdout)["rows"]] == ["torch"]


def test_a_backend_that_is_not_there_is_named_in_one_sentence(bench):
    result = bench("ToyCell", "--length", "32", "--backend", "abacus")
    assert result.exit_code == 2
    assert "no backend named 'abacus'" in result.stderr
