"""Checks of a cell under the solver: the parallel answer is the walked one, whatever the length, the interval, the start and the packing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.conformance.samples import bounded, in_dtype, mode, sized, visited
from pararnn.errors import ConformanceError
from pararnn.layers import ParaRNN
from pararnn.solver.config import NewtonConfig
from pararnn.verify import verify_agreement

BATCH = 2
LENGTHS = (1, 2, 7, 65)
INTERVALS = (1, 3, "parallel")
SEGMENTS = (3, 0, 7, 1)
LONG = 2048


def check_parallel_equals_walk(cell: Any, x: Tensor) -> None:
    """States and gradients of the parallel solve are those of the walk, for several lengths and intervals."""
    for length in LENGTHS:
        for interval in INTERVALS:
            config = NewtonConfig(interval=interval)  # type: ignore[arg-type]
            _agree(cell, sized(x, BATCH, length), f"T = {length}, interval {interval}", config=config)


def check_initial_state(cell: Any, x: Tensor) -> None:
    """A given initial state enters the solve and gets its gradient."""
    x = sized(x, BATCH, 9)
    start = visited(cell, x)[:, 0]
    for interval in INTERVALS:
        _agree(cell, x, f"h0 given, interval {interval}", config=NewtonConfig(interval=interval), h0=start)  # type: ignore[arg-type]


def check_packed_sequences(cell: Any, x: Tensor) -> None:
    """Sequences packed into one row, an empty one among them, end as each alone does."""
    x = sized(x, 1, sum(SEGMENTS))
    offsets = torch.tensor((0, *SEGMENTS)).cumsum(0)
    start = bounded(cell, cell.initial_state(len(SEGMENTS)) + 0.1 * torch.randn_like(cell.initial_state(len(SEGMENTS))))
    rnn = ParaRNN(cell, return_hidden=True)
    with mode(cell, training=False), torch.no_grad():
        packed, finals = rnn(x, start, cu_seqlens=offsets)
        for segment, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if begin == end:
                alone, final = packed[:, begin:end], start[segment : segment + 1]
            else:
                alone, (final,) = rnn(x[:, begin:end], start[segment : segment + 1])
            how = difference(packed[:, begin:end], alone) or difference(finals[0][segment : segment + 1], final)
            if how is not None:
                raise ConformanceError(
                    f"packed sequences leak into each other: segment {segment} ({end - begin} steps) in the pack and alone differ {how}; "
                    "the drive of a sample may depend on that sample alone"
                )
    for interval in INTERVALS:
        config = NewtonConfig(interval=interval)  # type: ignore[arg-type]
        _agree(cell, x, f"packed, interval {interval}", config=config, h0=start, cu_seqlens=offsets)


def check_decoding(cell: Any, x: Tensor) -> None:
    """Feeding samples one by one to `ParaRNN.step` gives the outputs and the state of `forward`."""
    x = sized(x, BATCH, 9)
    rnn = ParaRNN(cell, return_hidden=True)
    with mode(cell, training=False), torch.no_grad():
        outputs, finals = rnn(x)
        states = None
        for time in range(x.shape[1]):
            output, states = rnn.step(x[:, time], states)
            if (how := difference(output, outputs[:, time])) is not None:
                raise ConformanceError(
                    f"decoding goes astray: step by step and forward, the output of step {time} differs {how}; the drive of a sample may depend "
                    "on that sample alone, and all memory belongs into the state"
                )
        if states is not None and (how := difference(states[0], finals[0])) is not None:
            raise ConformanceError(f"decoding goes astray: step by step and forward, the final states differ {how}")


def check_stacking(cell: Any, x: Tensor) -> str | None:
    """`ParaRNN(cell, num_layers=2)` works, with parallel answer and gradients those of the walk."""
    x = sized(x, BATCH, 9)
    if not hasattr(cell, "layer_above"):
        if not hasattr(cell, "reset_parameters"):
            return "the cell has neither layer_above nor reset_parameters, so it is not stacked by num_layers"
        output = cell.readout(cell.initial_state(1))
        if output.shape[-1] != x.shape[-1]:
            return (
                f"the cell has no layer_above, and its output ({output.shape[-1]} channels) is no input for it ({x.shape[-1]}), so it is not stacked"
            )
    stack = ParaRNN(cell, num_layers=2)
    below, above = stack.layers
    shared = {id(weight) for weight in below.parameters()} & {id(weight) for weight in above.parameters()}
    if shared:
        raise ConformanceError("layer_above gives a cell that shares weights with this one; make a fresh one")
    _agree(stack, x, "two layers")
    return None


def check_long_sequences(cell: Any, x: Tensor) -> None:
    """Outputs and gradients of a long sequence are finite."""
    x = sized(x, 1, LONG).requires_grad_()
    outputs = ParaRNN(cell)(x)
    if not bool(outputs.isfinite().all()):
        raise ConformanceError(
            f"outputs of {LONG} steps are not finite; keep the derivative of step by the state below 1 on average, or bound the state"
        )
    weights = {"x": x} | {name: weight for name, weight in cell.named_parameters() if weight.requires_grad}
    gradients = torch.autograd.grad(outputs.abs().mean(), list(weights.values()), allow_unused=True)
    for name, gradient in zip(weights, gradients, strict=True):
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise ConformanceError(
                f"the gradient by {name} over {LONG} steps is not finite; look for sqrt, log, division or abs at zero in drive and step, "
                "and for a derivative of step by the state that exceeds 1"
            )


def check_float32(cell: Any, x: Tensor) -> None:
    """The cell works in float32: outputs of that dtype, parallel answer and gradients those of the walk."""
    single = in_dtype(cell, torch.float32)
    x = sized(x, BATCH, 65).to(torch.float32)
    outputs = ParaRNN(single)(x)
    if outputs.dtype.to_real() != torch.float32:
        raise ConformanceError(f"in float32 the outputs are {outputs.dtype}; make constants with the dtype of the weights (weight.new_tensor)")
    _agree(single, x, "float32, T = 65")


def _agree(module: Any, x: Tensor, case: str, **options: Any) -> None:
    report = verify_agreement(module, x, **options)
    if not report.ok:
        raise ConformanceError(
            f"{case}: {report}; if the checks of step, drive and structure pass, this is a fault of the solver: report it with the cell",
            report=report,
        )
