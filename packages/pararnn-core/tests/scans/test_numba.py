"""What only the compiled backend can get wrong: threads, blocks of channels, memory layouts, and being entered from several places at once."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pararnn.scans import numba_backend, scan
from pararnn.selection import Request, select
from pararnn.structures.diagonal import Diagonal

pytest.importorskip("numba")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def compiled(case, **options):
    return scan(case.transition, case.bias, case.initial, backend="numba", **options)


def test_auto_prefers_it():
    assert select(Request.of("scan/diagonal")).backend.name == "numba"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("size", [1, 255, 256, 257, 600], ids="D{}".format)
def test_states_of_any_width_equal_the_walk(recurrence, oracle, tolerance, dtype, size):
    case = recurrence(length=9, size=size, dtype=dtype, scale=0.5)
    torch.testing.assert_close(compiled(case), oracle(case.transition, case.bias, case.initial), **tolerance["states"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_served_by_carrying_it_in_float32(recurrence, dtype):
    case = recurrence(dtype=torch.float32).to(dtype)
    states = compiled(case)
    assert states.dtype == dtype
    assert torch.equal(states, scan(case.transition, case.bias, case.initial, backend="torch"))


@pytest.mark.parametrize("count", [1, 2, 3], ids="{} threads".format)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_threads_do_not_change_a_bit(recurrence, threads, monkeypatch, count, reverse):
    monkeypatch.setattr(numba_backend, "WORTH_THREADS", 0)
    case = recurrence(rows=5, length=33, size=300)
    threads(1)
    expected = compiled(case, reverse=reverse)
    threads(count)
    assert torch.equal(compiled(case, reverse=reverse), expected)


def test_threads_share_segments_too(recurrence, oracle, threads, monkeypatch, tolerance):
    monkeypatch.setattr(numba_backend, "WORTH_THREADS", 0)
    threads(3)
    offsets = torch.tensor([0, 0, 4, 5, 5, 20, 20])
    case = recurrence(rows=1, length=20, size=300, segments=6)
    torch.testing.assert_close(
        compiled(case, cu_seqlens=offsets), oracle(case.transition, case.bias, case.initial, cu_seqlens=offsets), **tolerance["states"]
    )


def test_large_inputs_that_are_worth_threads_equal_plain_torch(recurrence, threads):
    threads(2)
    case = recurrence(rows=8, length=400, size=40, scale=0.8)
    assert case.bias.numel() >= numba_backend.WORTH_THREADS
    torch.testing.assert_close(compiled(case), scan(case.transition, case.bias, case.initial, backend="torch"), rtol=1e-12, atol=1e-12)


def test_several_python_threads_at_once_each_get_their_own_states(recurrence, threads, monkeypatch):
    monkeypatch.setattr(numba_backend, "WORTH_THREADS", 0)
    threads(2)
    cases = [recurrence(rows=4, length=65, size=20, seed=seed) for seed in range(8)]
    expected = [compiled(case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for states, right in zip(pool.map(compiled, cases), expected, strict=True):
                assert torch.equal(states, right)


def test_several_python_threads_each_get_their_own_gradients(recurrence):
    def gradients(seed):
        case = recurrence(length=33, seed=seed, scale=0.8).requiring_grad()
        return torch.autograd.grad(compiled(case).square().sum(), case.tensors)

    expected = [gradients(seed) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        for found, right in zip(pool.map(gradients, range(6)), expected, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


STRIDES = {
    "transposed": lambda tensor: tensor.mT.contiguous().mT,
    "every third step": lambda tensor: tensor.repeat_interleave(3, dim=1)[:, ::3],
    "one value for all channels": lambda tensor: tensor[..., :1].expand_as(tensor),
    "one step for all time": lambda tensor: tensor[:, :1].expand_as(tensor),
    "one row for all rows": lambda tensor: tensor[:1].expand_as(tensor),
    "one number for all": lambda tensor: tensor[:1, :1, :1].expand_as(tensor),
}


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_strided_inputs_equal_contiguous_ones(recurrence, strides, dtype):
    case = recurrence(length=17, size=5, dtype=dtype, scale=0.6)
    maps, bias = STRIDES[strides](case.transition.diagonal), STRIDES[strides](case.bias)
    expected = scan(Diagonal(maps.contiguous()), bias.contiguous(), case.initial, backend="numba")
    assert torch.equal(scan(Diagonal(maps), bias, case.initial, backend="numba"), expected)


def test_an_expanded_initial_state_equals_a_full_one(recurrence):
    case = recurrence(rows=3)
    start = case.initial[:1, :1].expand(3, 6)
    expected = scan(case.transition, case.bias, start.contiguous(), backend="numba")
    assert torch.equal(scan(case.transition, case.bias, start, backend="numba"), expected)


FORK = """
import os
import torch
from pararnn.scans import numba_backend, scan
from pararnn.structures.diagonal import Diagonal

numba_backend.WORTH_THREADS = 1
torch.set_num_threads(2)
maps, terms = Diagonal(torch.full((4, 8, 3), 0.5)), torch.ones(4, 8, 3)
expected = scan(maps, terms, backend="numba")
child = os.fork()
if child == 0:
    torch.set_num_threads(2)
    os._exit(0 if torch.equal(scan(maps, terms, backend="numba"), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_scans_with_threads_of_its_own():
    # In a session of its own, so that a child that waits for ever ends with its parent.
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", FORK], start_new_session=True) as process:
        try:
            assert process.wait(timeout=60) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
