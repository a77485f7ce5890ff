"""The cell protocol: what the solver asks of a recurrent cell.

A cell is any `torch.nn.Module` with the members of `Cell`; there is no base class to inherit. Everything that does not see the
state (the large matrix products) belongs into `drive`, computed once for the whole sequence; `step` is the recurrence alone. It is a pure
function of state and drive (and parameters), works for any leading dimensions, and writes nothing in place.

The drive is a tensor or a named tuple of tensors. A leaf with three or more dimensions runs along the sequence as `(batch, time, ...)`;
a leaf with fewer (a per-channel weight `(state,)`) is the same at every step.

Optional members, each used when present:

- `jacobian(state, drive) -> Structure`: the analytic derivative of `step` by the state.
- `linearize(state, drive) -> (next_state, Structure)`: both at once, where they share work. The solver takes the Jacobian as a constant also
  where gradients are on, so it may be computed under `torch.no_grad()`; not so in a linear cell, whose scan is differentiated through it.
  Either formula is ignored when a subclass overrides `step` without it. Without either, the structure takes the derivative by `torch.func`.
- `exact_jacobian = False`: the structure is coarser than the true Jacobian (quasi-Newton); gradients then iterate to be exact.
- `is_linear = True`: `step` is affine in the state; one scan, no iteration.
- `state_bounds`: `(low, high)`, a range that no state leaves once inside; iterates are projected onto it.
- `guess(drive, initial) -> states`: a first trajectory `(batch, time, state)` for the parallel solve.
- `newton_iters(length) -> int`: a first iteration budget; never a promise, convergence is checked.
- `layer_above() -> cell` and `layer_above_input(output, x) -> x`: how `ParaRNN(cell, num_layers=n)` stacks the cell.
- `state_dtype`: the dtype of the states, which are made for it where the cell does not say.
- `solve_ops`: names of operations whose backends solve this very cell (fused kernels), asked before the general `solve`. One whose implementation
  has `takes_inputs = True` gets `(cell, x, config, h0=..., cu_seqlens=..., guess=...)` before the drive is computed, any other the problem. It may
  have a function `step(cell, x, state) -> bool` for decoding, which overwrites `state` `(batch, state)` from `x` `(batch, 1, input)`, or says no.
- `solve_obstacles() -> tuple[str, ...]`: sentences why this very object is not what such kernels were made for (a hook, a replaced layer), empty
  where it is; the `reasons` of its backends find them in the request's option `obstacles`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from pararnn.errors import CellError
from pararnn.structures.base import Structure

Drive: TypeAlias = Any
Step: TypeAlias = Callable[[Tensor, Drive], Tensor]
Linearize: TypeAlias = Callable[[Tensor, Drive], tuple[Tensor, Structure]]


@runtime_checkable
class Cell(Protocol):
    """The members every cell has."""

    structure: type[Structure]
    state_size: int

    def initial_state(self, batch: int) -> Tensor:
        """The state before the first sample, `(batch, state)`, in the dtype and on the device the states will have."""
        ...

    def drive(self, x: Tensor) -> Drive:
        """All of the inputs `x` `(batch, time, input)` that does not see the state."""
        ...

    def step(self, state: Tensor, drive: Drive) -> Tensor:
        """The next state from `state` `(*lead, state)` and the drive of that step."""
        ...

    def readout(self, states: Tensor) -> Tensor:
        """The output `(*lead, output)` of `states` `(*lead, state)`."""
        ...


_MISSING = object()


def optional(cell: Any, name: str, default: Any = None) -> Any:
    """An optional member of `cell`, or `default`: `getattr`, which is slow where a module lacks the name, asked where that is not plain to see."""
    own = cell.__dict__
    plainly_absent = name not in own and getattr(type(cell), name, _MISSING) is _MISSING and type(cell).__getattr__ is torch.nn.Module.__getattr__
    if plainly_absent and name not in own["_modules"] and name not in own["_parameters"] and name not in own["_buffers"]:
        return default
    return getattr(cell, name, default)


def check_cell(cell: object) -> None:
    """Raise `CellError` naming every member of the protocol that `cell` lacks or has in the wrong form."""
    if not isinstance(cell, torch.nn.Module):
        raise CellError(f"a cell is a torch.nn.Module, got {type(cell).__name__}; see pararnn.cell for its members")
    missing = [name for name in ("structure", "state_size", "initial_state", "drive", "step", "readout") if not hasattr(cell, name)]
    if missing:
        inner = (
            "; it holds a cell as .cell: pass that" if isinstance(getattr(cell, "cell", None), Cell) else "; see pararnn.cell for what each must be"
        )
        raise CellError(f"{type(cell).__name__} lacks {', '.join(missing)}{inner}", missing=missing)
    structure = cell.structure
    if not (isinstance(structure, type) and issubclass(structure, Structure)):
        raise CellError(
            f"{type(cell).__name__}.structure is {structure!r}; it must be a Structure class such as pararnn.structures.Diagonal",
            structure=structure,
        )
    if not isinstance(cell.state_size, int) or cell.state_size < 1:
        raise CellError(f"{type(cell).__name__}.state_size is {cell.state_size!r}; it must be an int of at least 1")
