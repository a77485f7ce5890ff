"""What each gradient keeps grows as it promises."""

import json

import pytest
from click.testing import CliRunner
from depth_memory import main, measure


@pytest.mark.parametrize(("method", "gradient", "most"), [("euler", "backprop", 11.0), ("euler", "checkpoint", 2.5 * 10**0.5)])
def test_kept_bytes_grow_with_depth_no_faster_than_they_may(method, gradient, most):
    assert measure(100, method, gradient, repeats=1).kept <= most * measure(10, method, gradient, repeats=1).kept


def test_a_reversible_block_keeps_the_same_at_every_depth():
    assert measure(10, "reversible_heun", "reversible", repeats=1).kept == measure(1000, "reversible_heun", "reversible", repeats=1).kept


def test_the_program_writes_what_it_measured(tmp_path):
    path = tmp_path / "rows.json"
    result = CliRunner().invoke(
        main, ["--depth", "8", "--depth", "9", "--json", str(path), "--figure", str(tmp_path / "memory.png")], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert [row["depth"] for row in json.loads(path.read_text())["rows"]] == [8, 9] * 4
    assert (tmp_path / "memory.png").stat().st_size
