"""The example reaches what it promises."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parent / "digits.py"


@pytest.mark.timeout(600)
def test_digits_read_pixel_by_pixel_are_recognised(monkeypatch, tmp_path):
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["digits.py", "--seeds", "0", "--json", str(tmp_path / "digits.json")])
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    assert json.loads((tmp_path / "digits.json").read_text())["mean_test_accuracy"] >= 0.96
