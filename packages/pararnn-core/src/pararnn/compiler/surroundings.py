"""Where a step runs to be looked at: on tensors without data, with nothing of what the caller has switched on."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

_Result = TypeVar("_Result")
# Threads in which steps are looked at.
_looking = threading.local()
# How many threads are inside of `_alone`, and what the last of them puts back.
_turn = threading.Lock()
_inside = 0
_switches = contextlib.ExitStack()
# Where PyTorch writes, with a traceback, that an operation failed on tensors without data. Whoever looks at a step says it in a sentence.
_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


def is_looked_at() -> bool:
    """Whether the caller is part of a step that is being looked at."""
    return getattr(_looking, "now", False)


def in_a_thread(function: Callable[[], _Result]) -> _Result:
    """What `function` gives, or raises, in a thread of its own, where autograd is on.

    Modes, transforms, autocast, hooks, profiler and debugger of this thread do not reach there; the default device and context variables do.
    """
    device, context = torch.get_default_device(), contextvars.copy_context()
    outcome: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        _looking.now = True
        try:
            with contextlib.nullcontext() if device.type == "cpu" else device:
                outcome.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=context.run, args=(run,))
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]


@contextlib.contextmanager
def without_numbers() -> Iterator[None]:
    """Tensors that are made have no data, and nothing is compiled; what fails is not logged."""
    with _alone(), _unlogged(), _WithoutData(allow_non_fake_inputs=True):
        yield


class _WithoutData(FakeTensorMode):
    # Where torch is built for CUDA and there is no GPU, the mode would have it put a stand-in for the GPU in place which lives as long as the thread
    # that enters first: the next thread to enter a mode ends the process (seen in torch 2.11). No tensor of a step is on a GPU that is not there.
    avoid_device_init = False


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """In the whole process nothing is compiled, and no garbage collected, as long as any thread is inside.

    A collection runs finalizers and callbacks of others, which would pass for parts of the step. Both switches belong to the process, so threads that
    put them back in another order than they found them would leave them switched off.
    """
    global _inside
    with _turn:
        if not _inside:
            _switches.enter_context(torch.compiler.set_stance("force_eager"))
            _switches.enter_context(_uncollected())
        _inside += 1
    try:
        yield
    finally:
        with _turn:
            _inside -= 1
            if not _inside:
                _switches.close()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """What this thread makes PyTorch say about tensors without data is dropped; other threads are heard."""
    here = threading.get_ident()

    def is_heard(record: logging.LogRecord) -> bool:
        return record.thread != here

    _LOGGER.addFilter(is_heard)
    try:
        yield
    finally:
        _LOGGER.removeFilter(is_heard)


def without_data(initial: Tensor, drive: Any) -> tuple[Tensor, Any]:
    """A state and the drive of one step, `(1, ...)`, from states `(..., state)` and the drive of a sequence."""
    state = torch.empty((1, initial.shape[-1]), dtype=initial.dtype, device=initial.device, requires_grad=True)
    leaves = [_first(leaf) for leaf in ((drive,) if isinstance(drive, Tensor) else drive)]
    if isinstance(drive, Tensor):
        return state, leaves[0]
    return state, drive._make(leaves) if hasattr(drive, "_make") else tuple(leaves)


def _first(leaf: Tensor | None) -> Tensor | None:
    if leaf is None:
        return None
    shape = (1, *leaf.shape[2:]) if leaf.ndim >= 3 else leaf.shape
    return torch.empty(shape, dtype=leaf.dtype, device=leaf.device, requires_grad=leaf.is_floating_point() or leaf.is_complex())
