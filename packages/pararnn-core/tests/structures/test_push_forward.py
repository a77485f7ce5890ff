"""What the first forward-mode pass of a process does beside the pass."""

import subprocess
import sys
import warnings

import pytest
import torch

from pararnn.structures import base

FIRST_PASS = """
import torch
from pararnn.structures.base import push_forward
value, slope = push_forward(torch.sin, torch.zeros(2), torch.ones(2))
assert slope.tolist() == [1, 1]
"""


def warning(kind):
    def step(state):
        warnings.warn("`torch.jit.script` is deprecated.", kind, stacklevel=1)
        return state.sin()

    return step


def push(step):
    return base.push_forward(step, torch.zeros(2), torch.ones(2))[1].tolist()


def test_the_first_pass_of_a_process_warns_of_nothing():
    # In a process of its own, because torch says it once, and where warnings are errors, because the import of torch fails there.
    # Of numpy that is not installed torch speaks when it is imported.
    options = ("-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning")
    done = subprocess.run([sys.executable, *options, "-c", FIRST_PASS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.jit.script" not in done.stderr


@pytest.mark.parametrize("kind", [DeprecationWarning, FutureWarning])
def test_only_the_first_pass_is_quiet(monkeypatch, kind):
    monkeypatch.setattr(base, "_has_pushed", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert push(warning(kind)) == [1, 1]
        with pytest.raises(kind, match="deprecated"):
            push(warning(kind))


def test_what_else_a_step_warns_of_is_heard_in_the_first_pass_too(monkeypatch):
    monkeypatch.setattr(base, "_has_pushed", False)
    with pytest.warns(UserWarning, match="deprecated"):
        push(warning(UserWarning))


def test_after_a_first_pass_that_fails_the_next_one_is_quiet(monkeypatch):
    monkeypatch.setattr(base, "_has_pushed", False)
    with pytest.raises(ZeroDivisionError):
        push(lambda state: state / (1 // 0))
    assert push(warning(FutureWarning)) == [1, 1]
