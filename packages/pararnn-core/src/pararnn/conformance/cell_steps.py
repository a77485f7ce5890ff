"""Checks of a cell's form and of its step: members and shapes, any leading dimensions, purity, sequences kept apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.cell import check_cell
from pararnn.conformance.comparison import difference
from pararnn.conformance.samples import at, bounded, modes, named_leaves, sized, visited
from pararnn.errors import CellError, ConformanceError, sentence
from pararnn.solver import drive as drives

BATCH, TIME = 3, 4
# How a batch of steps may be laid out. The solver uses more dimensions than a walk: batch and time, intervals before them.
LAYOUTS = {
    "(batch, time)": lambda leaf: leaf,
    "(time, batch)": lambda leaf: leaf.transpose(0, 1),
    "(1, batch, time)": lambda leaf: leaf.unsqueeze(0),
    "()": lambda leaf: leaf[0, 0],
}


def check_protocol(cell: Any, x: Tensor) -> None:
    """The cell has every member of `pararnn.cell.Cell`, and they fit each other."""
    try:
        check_cell(cell)
    except CellError as error:
        raise ConformanceError(str(error), **error.data) from error
    x = sized(x, BATCH, TIME)
    state, drive = cell.initial_state(BATCH), cell.drive(x)
    _expect("initial_state(batch)", state, (BATCH, cell.state_size))
    leaves = named_leaves(drive)
    for name, leaf in leaves.items():
        if not isinstance(leaf, Tensor):
            raise ConformanceError(f"drive(x) holds a {type(leaf).__name__} as {name}; a drive is a tensor or a named tuple of tensors")
    if {leaf.shape[:2] for leaf in leaves.values() if drives.is_timed(leaf)} != {(BATCH, TIME)}:
        shapes = ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in leaves.items())
        raise ConformanceError(
            f"drive(x) of x {tuple(x.shape)} gives {shapes}; what runs along the sequence starts with (batch, time) = ({BATCH}, {TIME}) and has at "
            "least three dimensions, weights that are the same at every step have at most two, and at least one leaf runs along the sequence"
        )
    following = cell.step(state, at(drive, lambda leaf: leaf[:, 0]))
    _expect("step(state, drive)", following, (BATCH, cell.state_size))
    if following.dtype != state.dtype:
        raise ConformanceError(f"initial_state is {state.dtype} and step gives {following.dtype}; give both the dtype of the states")
    if tuple(cell.initial_state(0).shape) != (0, cell.state_size):
        raise ConformanceError(f"initial_state(0) has shape {tuple(cell.initial_state(0).shape)}; it is (0, state) for no sequence at all")


def check_step_broadcasts(cell: Any, x: Tensor) -> None:
    """`step` works for any leading dimensions, and gives for each what it gives for one."""
    x = sized(x, BATCH, TIME)
    state, drive = visited(cell, x), cell.drive(x)
    with torch.no_grad():
        columns = [cell.step(state[:, time], at(drive, lambda leaf, time=time: leaf[:, time])) for time in range(TIME)]  # type: ignore[misc]
        expected = torch.stack(columns, dim=1)
        for name, layout in LAYOUTS.items():
            try:
                found = cell.step(layout(state), at(drive, layout))
            except Exception as error:
                raise ConformanceError(
                    f"step does not broadcast: leading dimensions {name} fail, those of a walk work ({sentence(error)}); "
                    "write it for any leading dimensions: index and join along the last one ([..., i], dim=-1)"
                ) from error
            if (how := difference(found, layout(expected))) is not None:
                raise ConformanceError(
                    f"step does not broadcast: with leading dimensions {name} and one time at a time the states differ {how}; "
                    "name dimensions from the end (dim=-1), and let no sum or mean run over leading ones"
                )


def check_readout_broadcasts(cell: Any, x: Tensor) -> None:
    """`readout` works for any leading dimensions, and reads each state alone."""
    x = sized(x, BATCH, TIME)
    states = visited(cell, x)
    with torch.no_grad():
        expected = torch.stack([cell.readout(states[:, time]) for time in range(TIME)], dim=1)
        for name, layout in LAYOUTS.items():
            if (how := difference(cell.readout(layout(states)), layout(expected))) is not None:
                raise ConformanceError(
                    f"readout of states with leading dimensions {name} and of one time at a time differ {how}; an output reads its own state alone"
                )


def check_step_is_deterministic(cell: Any, x: Tensor) -> None:
    """Two calls of `step` with equal arguments give equal bits, in training and in evaluation mode."""
    x = sized(x, BATCH, TIME)
    for name in modes(cell):
        state, drive = visited(cell, x), at(cell.drive(x), lambda leaf: leaf)
        with torch.no_grad():
            first, second = cell.step(state, drive), cell.step(state, drive)
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ConformanceError(
                f"step is not deterministic in {name}: two calls with the same state and drive differ by up to {(first - second).abs().max():.1e}, "
                "but the solver evaluates each step several times; draw random numbers in drive, once for a sequence, and keep nothing between calls"
            )


def check_step_writes_nothing(cell: Any, x: Tensor) -> None:
    """`step` leaves its state, its drive, the parameters and the buffers as they are."""
    x = sized(x, BATCH, TIME)
    for name in modes(cell):
        state = visited(cell, x)
        drive = at(cell.drive(x), lambda leaf: leaf.clone())
        watched = {"the state": state}
        watched |= {f"the drive ({leaf})": tensor for leaf, tensor in named_leaves(drive).items()}
        watched |= {f"the parameter {weight}": tensor for weight, tensor in cell.named_parameters()}
        watched |= {f"the buffer {buffer}": tensor for buffer, tensor in cell.named_buffers()}
        before = {what: (tensor._version, tensor.detach().clone()) for what, tensor in watched.items()}
        with torch.no_grad():
            cell.step(state, drive)
        for what, tensor in watched.items():
            version, value = before[what]
            if tensor._version != version or not torch.equal(tensor.detach().nan_to_num(), value.nan_to_num()):
                raise ConformanceError(
                    f"step writes in place into {what} in {name}; the solver still needs it, so compute a new tensor (state + a, not state.add_(a))"
                )


def check_step_keeps_sequences_apart(cell: Any, x: Tensor) -> None:
    """The next state of a sequence depends on its own state and drive, not on its neighbours' in the batch."""
    x = sized(x, BATCH, TIME)
    state, drive = visited(cell, x), cell.drive(x)
    moved = torch.cat((state[:1], bounded(cell, state[1:] + torch.randn_like(state[1:]))))
    other = drives.map_timed(lambda leaf: torch.cat((leaf[:1], leaf[1:].roll(1, dims=1))), drive)
    cases = {
        "when the state of another sequence changes": (moved, drive, slice(None)),
        "when the drive of another sequence changes": (state, other, slice(None)),
        "when it is alone in the batch": (state, drive, slice(1)),
    }
    with torch.no_grad():
        for time in range(TIME):
            truth = cell.step(state[:, time], at(drive, lambda leaf, time=time: leaf[:, time]))[0]  # type: ignore[misc]
            for case, (states, driven, rows) in cases.items():
                pieces = at(driven, lambda leaf, time=time, rows=rows: leaf[rows, time])  # type: ignore[misc]
                found = cell.step(states[rows, time], pieces)[0]
                if (how := difference(found, truth)) is not None:
                    raise ConformanceError(
                        f"state leaks across the batch: the next state of one sequence differs {how} {case}; "
                        "a step may combine channels of one state (dim=-1), never entries of leading dimensions"
                    )


def _expect(what: str, found: object, shape: tuple[int, ...]) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConformanceError(f"{what} gives {got}; it must be a tensor of shape (batch, state_size) = {shape}")
