"""Which functions a step enters: it runs once with numbers and once on tensors without data, in copies of its cell, and they are noted.

Code of PyTorch and of the standard library counts as fixed.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.cell import Drive
from pararnn.compiler.places import Replaced, places
from pararnn.compiler.surroundings import in_a_thread, without_data, without_numbers
from pararnn.solver import drive as drives
from pararnn.solver.truth import check_one_step

# PyTorch, what it is made with, and the standard library.
FOREIGN = frozenset((*sys.stdlib_module_names, "torch", "numpy", "triton", "sympy", "mpmath", "networkx", "typing_extensions", "")) - {"__main__"}


@dataclass(frozen=True)
class Entered:
    """A function that was entered: its code, and the globals that it sees."""

    code: types.CodeType
    home: Mapping[str, Any]

    @property
    def module(self) -> str:
        """Where it is defined."""
        return str(self.home.get("__name__", ""))

    @property
    def names(self) -> set[str]:
        """Globals and attributes that it mentions, functions inside of it included."""
        return {name for code in _codes(self.code) for name in code.co_names}


def functions_entered(step: Callable[[Tensor, Drive], Tensor], initial: Tensor, drive: Drive) -> list[Entered]:
    """The functions that `step` and its derivative enter, but those of the standard library and of PyTorch; layers of PyTorch count.

    Raises:
        CellError: the step gives no next state of what it gets.
    """
    # With numbers first: a table that anything makes at its first call, for all further ones, has to hold some.
    if not torch.compiler.is_compiling() and not (initial.is_cuda and torch.cuda.is_current_stream_capturing()):
        _take_with_numbers(step, initial, drive)
    entered: dict[types.CodeType, Entered] = {}

    def run() -> None:
        # What goes wrong for want of numbers is told by tracing, which enters the same functions.
        with without_numbers(), contextlib.suppress(Exception):
            # What the step keeps, and the gradients of what it reads, stay in the copies.
            tensors = {place.path: _like(place.tensor) for place in places(step)}
            copy = Replaced(step, tensors)
            state, leaves = without_data(initial, drive)
            total = _noted(lambda: copy.step(state, leaves), copy, entered).sum()
            if _runs_python(total.grad_fn) or any("register_hook" in one.names for one in entered.values()):
                sources = [one for one in (state, *drives.leaves(leaves), *tensors.values()) if _is_variable(one)]
                _noted(lambda: torch.autograd.grad(total, sources, allow_unused=True), copy, entered)

    in_a_thread(run)
    return [one for one in entered.values() if one.module != __name__ and (not is_foreign(one.module) or _is_layer(one.module))]


def _take_with_numbers(step: Callable[[Tensor, Drive], Tensor], initial: Tensor, drive: Drive) -> None:
    """Take a step in a copy of its cell with buffers of its own; where that fails, which may be for want of the cell itself, in the cell."""
    try:
        buffers = {place.path: place.tensor.detach().clone() for place in places(step) if not isinstance(place.tensor, nn.Parameter)}
        check_one_step(Replaced(step, buffers).step, initial, drive)
    except Exception:
        check_one_step(step, initial, drive)


def is_foreign(module: str) -> bool:
    """Whether what is defined there counts as fixed."""
    # Methods of named tuples are made from text, in modules of such names.
    return module.partition(".")[0] in FOREIGN or module.startswith("namedtuple_")


def _noted(function: Callable[[], Any], copy: Replaced, entered: dict[types.CodeType, Entered]) -> Any:
    """What `function` gives; the functions entered meanwhile are added to `entered`, with their globals where `copy` has copied these."""
    imports = 0

    def note(frame: types.FrameType, event: str, _: object) -> None:
        nonlocal imports
        code = frame.f_code
        if event in ("call", "return") and code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            # Import hooks of others, as a test runner has, are no part of a step that happens to need a module.
            imports += 1 if event == "call" else -1
        elif event == "call" and not imports and code not in entered:
            entered[code] = Entered(code, copy.globals_of(frame.f_globals))

    sys.setprofile(note)
    try:
        return function()
    finally:
        sys.setprofile(None)


def _like(tensor: Tensor) -> Tensor:
    """A tensor of the same form without a history, which autograd follows where it follows the other."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _is_variable(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def _runs_python(node: Any) -> bool:
    """Whether the derivative behind a node of autograd's graph calls functions of Python."""
    seen, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False


def _is_layer(module: str) -> bool:
    """Whether a module of PyTorch holds layers, whose attributes are settings."""
    return module.startswith("torch.nn.") and module != "torch.nn.modules.module"


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)
