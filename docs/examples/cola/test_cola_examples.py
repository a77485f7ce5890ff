"""The programs behind the figures of the documentation run, on little."""

import json

import pytest
from click.testing import CliRunner
from criticality import GAINS, HEAD, measured
from criticality import main as criticality
from study_tables import main as study_tables

from pararnn_cola.study.command import cola_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a short study."""
    folder = tmp_path_factory.mktemp("study")
    outcome = CliRunner().invoke(cola_study, ["smoke", "--iterations", "5", "--device", "cpu", "--out", str(folder)], catch_exceptions=False)
    assert outcome.exit_code == 0
    return folder


def test_a_study_becomes_three_tables_and_a_figure(study, tmp_path):
    figure = tmp_path / "differences.png"
    outcome = CliRunner().invoke(study_tables, [str(study / "table.json"), "--figure", str(figure)], catch_exceptions=False)
    tables = outcome.output.strip().split("\n\n")
    assert len(tables) == 3
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    assert figure.stat().st_size < 80_000


def test_the_short_tables_hold_the_numbers_of_the_study(study):
    table = json.loads((study / "table.json").read_text())
    shown = CliRunner().invoke(study_tables, [str(study / "table.json")], catch_exceptions=False).output
    conditions = {(entry["task"], entry["algorithm"]) for entry in table["best"]}
    assert all(sum(f", {algorithm}" in line for line in shown.splitlines()) == 3 * len(conditions) / 2 for algorithm in ("adam", "sgd"))


def test_signals_are_nearly_exact_at_a_small_gain_and_nowhere_near_at_a_large_one():
    small, large = (measured("lorenz", gain, 0)[2] for gain in (0.5, 5.0))
    assert small > 0.9
    assert large < 0.3


def test_the_table_of_criticality_has_a_row_for_each_gain_and_a_figure(tmp_path):
    figure = tmp_path / "criticality.png"
    outcome = CliRunner().invoke(criticality, ["--seeds", "1", "--tasks", "lorenz", "--figure", str(figure)], catch_exceptions=False)
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(GAINS)
    assert {line.count("|") for line in lines} == {len(HEAD) + 1}
    assert figure.exists()
