"""Records of compiled solves wait to be read: nothing waits for the device before."""

import copy
import dataclasses
import pickle

import pytest
import torch
from reference_engine import ReferenceEngine
from solved_gates import COMPILED, result_of, sources
from torch.utils._python_dispatch import TorchDispatchMode
from toy_cells import ToyCell

from pararnn import NewtonConfig, ParaRNN, Status
from pararnn.compiler import solving
from pararnn.compiler.native import backend


class NoLook(TorchDispatchMode):
    """Raises where the host would wait for a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_to_copy"):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class Blind(ReferenceEngine):
    """An engine whose kernels are not looked into by a dispatch mode."""

    def solve(self, *args, **options):
        with torch.utils._python_dispatch._disable_current_modes():
            return super().solve(*args, **options)

    def backward(self, *args, **options):
        with torch.utils._python_dispatch._disable_current_modes():
            return super().backward(*args, **options)


def test_nothing_waits_for_the_device_before_the_record_is_asked_for(monkeypatch):
    engine = Blind()
    monkeypatch.setattr(backend, "engine", lambda: engine)
    monkeypatch.setattr(backend.solve, "engine", lambda: engine)
    monkeypatch.setattr(solving, "looks_at_once", lambda tensor: False)
    monkeypatch.setattr("pararnn.solver.asking.only_numbers", lambda: True)
    cell, x, h0 = sources()
    layer = ParaRNN(cell, config=COMPILED, return_hidden=True)
    layer(x, h0)
    with NoLook():
        output, (final,) = layer(x, h0)
        (output.sum() + final.sum()).backward()
        _, (result,) = layer.solve(x, h0)
        with pytest.raises(AssertionError, match="waits for the device"):
            result.explain()


def test_the_record_is_read_when_a_part_of_it_is_asked_for():
    cell, x, _ = sources()
    result = result_of(cell, x, NewtonConfig(backend="native", interval="parallel"))
    assert "status" not in vars(result)
    assert result.status is Status.CONVERGED
    assert (result.iterations, result.margin, result.walked, result.updates) == (3, 0.25, 0, ())
    assert result.converged.tolist() == [True, True]
    assert "3 iterations where most were needed; the last updates were at most 0.25 of the tolerance." in result.explain()
    assert "0.0" not in repr(result.status)
    assert result.raise_for_status() is result


def test_a_deferred_result_is_a_result_in_every_other_way():
    cell, x, _ = sources()
    with torch.no_grad():
        result = result_of(cell, x)
    assert "one after the other" in result.explain().splitlines()[0]
    assert "one after the other" not in "".join(result.explain().splitlines()[1:])
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), dataclasses.replace(result, backend="native")):
        assert other.status is Status.WALKED
        assert other.margin is None
        torch.testing.assert_close(other.final, result.final, rtol=0, atol=0)
    assert not hasattr(result, "nothing")


def test_repaired_sequences_are_told_from_the_others(engine, monkeypatch):
    solve = engine.solve

    def repairing(*args, **options):
        states, record = solve(*args, **options)
        record[1, 0, 2] = 1
        return states, record

    monkeypatch.setattr(engine, "solve", repairing)
    cell, x, _ = sources()
    result = result_of(cell, x, NewtonConfig(backend="native", interval=4))
    assert result.status is Status.REPAIRED
    assert result.converged.tolist() == [True, False]
    assert result.walked == 11
    assert "What was left was walked, 11 steps one after the other." in result.explain()


def test_a_recurrence_that_runs_into_infinity_says_so():
    class Square(ToyCell):
        def step(self, state, drive):
            return state * state + drive

    result = result_of(Square(3), torch.full((1, 30, 3), 10.0, dtype=torch.float64))
    assert result.status is Status.NOT_FINITE
