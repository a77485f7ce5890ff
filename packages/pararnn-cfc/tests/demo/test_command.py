import json
import sys

import pytest
import torch
from click.testing import CliRunner

from pararnn.cli import main

MODULES = ("statsmodels.datasets.co2", "matplotlib.figure", "safetensors.torch")


@pytest.fixture
def extras():
    for module in MODULES:
        pytest.importorskip(module)


def run(*arguments):
    return CliRunner().invoke(main, ["demo", "--epochs", "2", *arguments])


def test_json_and_nothing_else_is_printed_and_files_are_written(extras, tmp_path):
    from safetensors.torch import load_file

    threads = torch.get_num_threads()

    result = run("--json", "--output", str(tmp_path / "new" / "folder"))

    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["agreement"]["ok"]
    assert len(document["training"]["losses"]) == 2
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {
        "forecaster.safetensors",
        "results.json",
        "data.png",
        "forecast.png",
        "training.png",
        "speed.png",
    }
    assert "head.weight" in load_file(document["files"]["weights"])
    assert torch.get_num_threads() == threads


def test_tables_verdict_and_places_of_files_are_printed(extras, tmp_path):
    result = run("--output", str(tmp_path))

    assert result.exit_code == 0, result.output
    for words in ("the loop takes", "persistence", "linear", "ParaCfC", str(tmp_path / "forecaster.safetensors")):
        assert words in result.stdout


@pytest.mark.parametrize("module", MODULES)
def test_a_missing_extra_is_a_sentence_that_says_what_to_install(monkeypatch, tmp_path, module):
    for needed in MODULES:
        if needed != module:
            pytest.importorskip(needed)
    monkeypatch.setitem(sys.modules, module, None)

    result = run("--output", str(tmp_path))

    assert result.exit_code == 2
    assert "pip install 'pararnn-cfc[demo]'" in result.stderr
    assert result.stdout == ""


def test_a_folder_that_cannot_be_made_is_a_sentence(extras, tmp_path):
    (tmp_path / "file").write_text("")

    result = run("--output", str(tmp_path / "file" / "below"))

    assert result.exit_code == 2
    assert "choose another folder" in result.stderr
