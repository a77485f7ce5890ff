"""What is said of backends that cannot serve, and how those that compile behave."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.selection import Request, clear_cache, select
from pararnn_s4 import cauchy, vandermonde
from pararnn_s4.kernels import compiled, keops_backend, naive, numba_backend


def request_for(op="cauchy", **facts):
    return Request.of(f"s4/{op}", **{"dtype": "complex64", "groups": 1, "copies": 2, "state": 3, "length": 4} | facts)


@pytest.fixture
def without(monkeypatch):
    """Make a module look as if it were not installed."""
    find = importlib.util.find_spec

    def hide(name):
        clear_cache()
        monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *rest: None if asked == name else find(asked, *rest))

    yield hide
    clear_cache()


def test_auto_on_the_cpu_never_takes_a_backend_that_compiles_for_long(without):
    for op in ("cauchy", "vandermonde", "vandermonde_transpose"):
        assert select(request_for(op)).backend.name in ("numba", "blocked")
    without("numba")
    assert select(request_for()).backend.name == "blocked"


def test_a_missing_library_is_named_with_the_command_that_installs_it(without):
    without("pykeops")
    with pytest.raises(BackendError, match=r"pykeops is not installed; pip install 'pararnn-s4\[keops\]'"):
        cauchy(torch.ones(3), torch.ones(4), -torch.ones(3), backend="keops")
    without("numba")
    with pytest.raises(BackendError, match=r"numba is not installed; pip install 'pararnn-core\[cpu\]'"):
        cauchy(torch.ones(3), torch.ones(4), -torch.ones(3), backend="numba")


def test_every_obstacle_is_listed(without, monkeypatch):
    without("pykeops")
    monkeypatch.setenv("CXX", "no-such-compiler")
    reasons = keops_backend.reasons(request_for(device="xpu", dtype="complex32", options={"transformed": True}))
    assert len(reasons) == 5
    assert any("no-such-compiler is not on the path" in reason for reason in reasons)
    assert any("runs on the CPU" in reason for reason in numba_backend.reasons(request_for(device="cuda")))


def test_without_a_compiler_the_compiled_backend_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert any("no-such-compiler" in reason for reason in compiled.reasons(request_for()))


def test_a_compiler_that_fails_is_reported_and_remembered(monkeypatch):
    def fail(*_, **__):
        def graph(*_):
            raise RuntimeError("the compiler gave up")

        return graph

    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setattr(compiled, "_failures", {})
    # Its cache would keep the graph that fails.
    monkeypatch.setattr(compiled, "_graph", compiled._graph.__wrapped__)
    one = torch.ones(1, 5, 6, dtype=torch.complex64)
    with pytest.raises(BackendError, match="the compiler gave up"):
        compiled.cauchy(one, one[0, :1], one[0], conj=False)
    assert any("the compiler gave up" in reason for reason in compiled.reasons(request_for()))


def test_keops_is_imported_at_first_use_only():
    program = "import sys, pararnn_s4.functional, pararnn_s4.kernels.keops_backend; sys.exit('pykeops' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_keops_says_nothing_on_standard_output(require, capfd, numerators, nodes, poles):
    require("cauchy", "keops")
    cauchy(numerators, nodes, poles, backend="keops")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("backend", ["compiled", "keops"])
def test_new_sizes_compile_nothing(backend, require, random):
    require("cauchy", backend)
    from torch._dynamo.utils import counters

    made = []
    for size in (3, 4):
        # All sizes differ, in the same way both times.
        v, z, w = random(size, size + 10, size + 20, seed=1), random(size + 30, seed=2) + 4, random(size + 10, size + 20, seed=3)
        torch.testing.assert_close(cauchy(v, z, w, backend=backend), cauchy(v, z, w, backend="naive"))
        made.append((counters["stats"]["unique_graphs"], keops_backend._reduction.cache_info().misses))
    assert made[0] == made[1]


@pytest.mark.parametrize("module", [naive, numba_backend])
def test_the_probe_of_a_backend_that_works_finds_no_obstacle(module, require):
    if module is numba_backend:
        require("cauchy", "numba")
    assert module.probe() is None


def test_no_array_of_state_by_length_is_made():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.numel())
            return result

    copies, state, length = 4, 32, 4096
    v = torch.ones(copies, state, dtype=torch.complex64, requires_grad=True)
    x = torch.full((copies, state), -0.1 + 1j, dtype=torch.complex64, requires_grad=True)
    with Largest() as seen:
        vandermonde(v, x, length, backend="blocked").sum().backward()
    assert seen.size <= 4 * copies * length
