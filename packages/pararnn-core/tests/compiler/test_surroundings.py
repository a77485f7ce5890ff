"""Looking at a step leaves the process as it was, and sees nothing of what else goes on in it."""

import gc
import logging
import threading
import types

import pytest
import torch

from pararnn.compiler import catalogue
from pararnn.compiler.surroundings import in_a_thread, without_numbers
from pararnn.solver.problem import Problem
from pararnn.structures import Diagonal

WATCHER = """
collections = 0

def watch(phase, info):
    global collections
    collections += 1
"""


@pytest.fixture
def watched_collections():
    """Somebody else's callback, which counts collections; these come all the time."""
    watcher = types.ModuleType("somebody_elses")
    exec(WATCHER, watcher.__dict__)
    before = gc.get_threshold()
    gc.callbacks.append(watcher.watch)
    gc.set_threshold(5, 1, 1)
    yield watcher
    gc.set_threshold(*before)
    gc.callbacks.remove(watcher.watch)


def problem_of(step):
    return Problem(step=step, structure=Diagonal, drive=torch.ones(1, 5, 3), initial=torch.zeros(1, 1, 3), cell=step)


def test_a_callback_of_the_garbage_collector_is_no_part_of_a_step(watched_collections):
    def step(state, drive):
        return torch.tanh(state + drive)

    assert isinstance(catalogue.compiled(problem_of(step)), catalogue.Compiled)
    assert watched_collections.collections
    assert gc.isenabled()


def test_threads_that_look_at_once_leave_the_compiler_and_the_collector_switched_on():
    both, first_is_out = threading.Barrier(2, timeout=30), threading.Event()

    def look(is_first):
        with without_numbers():
            both.wait()
            if not is_first:
                assert first_is_out.wait(30)
                assert not gc.isenabled()
        if is_first:
            first_is_out.set()

    threads = [threading.Thread(target=in_a_thread, args=(lambda is_first=is_first: look(is_first),)) for is_first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch._dynamo.eval_frame._stance.stance == "default"
    assert gc.isenabled()


def test_nothing_stands_in_for_a_gpu_that_is_missing(monkeypatch):
    def stand_in():
        raise AssertionError("a stand-in that dies with the thread")

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch._C, "_ensureCUDADeviceGuardSet", stand_in)

    def look():
        with without_numbers():
            return torch.empty(3, requires_grad=True).sum().shape

    assert in_a_thread(look) == ()


def test_a_look_that_fails_leaves_the_collector_on():
    def fail():
        with without_numbers():
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_a_thread(fail)
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with without_numbers():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_pytorch_logs_of_a_step_that_fails_without_data_is_not_heard_and_that_of_other_threads_is(caplog):
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = list(logger.filters)

    def fail():
        with without_numbers():
            other = threading.Thread(target=logger.error, args=("of another thread",))
            other.start()
            other.join()
            torch.ones(3) * torch.ones(4)

    # PyTorch ends the way of records at its own handler.
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(RuntimeError, match=r"3|broadcast"):
            in_a_thread(fail)
    finally:
        logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"of another thread"}
    assert logger.filters == before
