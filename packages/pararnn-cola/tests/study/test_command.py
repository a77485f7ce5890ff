from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pararnn.cli import main
from pararnn.errors import ConfigError
from pararnn_cola.study.command import cola_study

FEW = ["smoke", "--rules", "COLA,TBPTT1", "--tasks", "adding:every", "--iterations", "3"]


def call(*arguments, command=cola_study):
    result = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_a_study_is_trained_and_tabled(tmp_path):
    result = call(*FEW, "--out", tmp_path)
    assert "| COLA | sgd |" in result.stdout
    assert (tmp_path / "table.md").read_text() in result.stdout
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 20
    assert json.loads((tmp_path / "table.json").read_text())["duels"]


def test_what_is_done_is_not_done_again(tmp_path):
    call(*FEW, "--out", tmp_path)
    before = (tmp_path / "results.jsonl").read_text()
    call(*FEW, "--out", tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == before


def test_a_stopped_study_goes_on_with_what_is_left(tmp_path):
    call(*FEW, "--out", tmp_path)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:10]) + "\n" + lines[10][:40])
    listed = call(*FEW, "--out", tmp_path, "--list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["done", "to"]
    call(*FEW, "--out", tmp_path)
    assert all(line.startswith("done") for line in call(*FEW, "--out", tmp_path, "--list").stdout.splitlines())


def test_no_entry_begins_after_the_time_is_up(tmp_path):
    result = call(*FEW, "--out", tmp_path, "--minutes", 0)
    assert "2 entries are left" in result.stderr
    assert not (tmp_path / "results.jsonl").exists()


def test_parts_from_several_files_make_one_table(tmp_path):
    for rule in ("COLA", "TBPTT1"):
        call("smoke", "--rules", rule, "--tasks", "adding:every", "--iterations", 3, "--out", tmp_path / rule)
        (tmp_path / rule / "results.jsonl").rename(tmp_path / f"{rule}.jsonl")
    plain = json.loads(call("smoke", "--table-only", "--json", "--out", tmp_path).stdout)
    assert {row["rule"] for row in plain["best"]} == {"COLA", "TBPTT1"}
    assert plain["duels"]


def test_json_is_all_there_is_on_stdout(tmp_path):
    assert json.loads(call(*FEW, "--out", tmp_path, "--json").stdout)["best"]
    assert len(json.loads(call(*FEW, "--out", tmp_path, "--json", "--list").stdout)) == 2


def test_pictures_are_drawn_for_every_task(tmp_path):
    pytest.importorskip("matplotlib")
    call(*FEW, "--out", tmp_path, "--plots")
    assert {path.name.split("-")[0] for path in (tmp_path / "plots").glob("*.png")} == {"rules", "curves", "rates"}


def test_seeds_are_whole_numbers(tmp_path):
    result = CliRunner().invoke(cola_study, ["smoke", "--seeds", "1,x", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "whole numbers" in result.output


@pytest.mark.parametrize("option", [("--seeds", ","), ("--rules", " , "), ("--minutes", "nan")], ids=" ".join)
def test_options_that_mean_nothing_are_refused(tmp_path, option):
    result = CliRunner().invoke(cola_study, ["smoke", *option, "--list", "--out", str(tmp_path)])
    assert result.exit_code == 2


def test_a_rule_that_is_misspelt_is_an_error_and_the_others_are_not_trained(tmp_path):
    with pytest.raises(ConfigError, match="the rules CLOA"):
        call("smoke", "--rules", "COLA,CLOA", "--out", tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("pararnn_cola.study.command.run_entry", None)
    with pytest.raises(ConfigError, match=r"--out .* cannot be written"):
        call(*FEW, "--out", tmp_path / "file" / "results")


def test_json_tells_how_many_entries_are_left(tmp_path):
    assert json.loads(call(*FEW, "--out", tmp_path, "--minutes", 0, "--json").stdout)["entries_left"] == 2
    assert json.loads(call(*FEW, "--out", tmp_path, "--json").stdout)["entries_left"] == 0


def test_a_device_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no device"):
        call(*FEW, "--out", tmp_path, "--device", "abacus")


def test_pararnn_has_the_command(tmp_path):
    assert "to do" in call("cola-study", *FEW, "--out", tmp_path, "--list", command=main).stdout


@pytest.mark.integration
def test_the_module_runs_by_itself(tmp_path):
    command = [sys.executable, "-m", "pararnn_cola.study", "smoke", "--rules", "Nobody", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "\nError: 'smoke' has no entry" in "\n" + ran.stderr
