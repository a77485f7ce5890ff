"""What a stream is made of: steps, sequences that are cut into steps, and the errors that name the item which does not fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pararnn.errors import DTypeError, ShapeError
from pararnn_cola.errors import StreamError
from pararnn_cola.network import Network


class Step(NamedTuple):
    """One time step of a stream, as `learner.step` takes it, and whether sequences begin with it."""

    u: Tensor
    """inputs `(batch, *input)`"""
    y: Tensor | None
    """targets; None in a step that only advances the state"""
    weight: Tensor | float | None = None
    """of the loss, `(batch,)` or a number"""
    mask: Tensor | None = None
    """`(batch,)`, false in rows that have no step"""
    reset: Tensor | bool = False
    """true where a new sequence begins with this step: `(batch,)`, or one bool for all rows, after which the batch may have another size"""


class Form(NamedTuple):
    """What the network asks of a step."""

    lead: tuple[int, ...]
    """sizes before the batch"""
    unit_dims: int
    """dimensions of one sample's input"""
    device: torch.device

    @classmethod
    def of(cls, network: Network) -> Form:
        return cls(tuple(network.lead), network.recurrent[0].unit_dims, next(network.parameters()).device)

    def axes(self, *, time: bool) -> str:
        """The dimensions of an input, in words."""
        names = [*("runs",) * len(self.lead), "batch", *("time",) * time, *(("input",) if self.unit_dims == 1 else ("channels", "height", "width"))]
        return f"({', '.join(names)})"


class Sequence(NamedTuple):
    """Tensors with a time axis; weights that all rows share are numbers."""

    inputs: Tensor
    targets: Tensor | None
    weights: Tensor | list[float] | None
    mask: Tensor | None
    axis: int
    length: int

    def step(self, t: int) -> Step:
        """The step at `t`, which begins a sequence at 0."""
        weights = self.weights
        return Step(
            self.inputs.select(self.axis, t),
            None if self.targets is None else self.targets.select(self.axis, t),
            weights.select(-1, t) if isinstance(weights, Tensor) else None if weights is None else weights[t],
            None if self.mask is None else self.mask.select(-1, t),
            t == 0,
        )


def step_of(item: Any, number: int, form: Form) -> Step:
    """`item`, the `number`-th of a stream, as a `Step` on the network's device.

    Raises:
        StreamError: it is no `(u, y)`, `(u, y, weight)` or `Step`.
        DTypeError, ShapeError: `u` is no tensor of one step, or `reset` is neither a bool nor one flag a sample.
    """
    if not isinstance(item, Step):
        if not isinstance(item, tuple | list) or not 2 <= len(item) <= 3:
            raise StreamError(f"item {number} of the stream is {_kind(item)}; {_advice(item)}", item=number)
        item = Step(*item)
    step: Step = item
    u = step.u
    if not isinstance(u, Tensor):
        kind = type(u).__name__
        raise DTypeError(f"item {number} of the stream has inputs of type {kind}; make them a tensor {form.axes(time=False)}", item=number)
    ahead = u.dim() - len(form.lead) - form.unit_dims
    if ahead != 1:
        advice = "wrap data that has a time axis: train(learner, sequences(loader))" if ahead == 2 else "give the samples of one step"
        if form.lead and u.dim() == 1 + form.unit_dims:
            shape = ", ".join(map(str, form.lead))
            advice = f"for samples that all runs share, x.expand({shape}, *x.shape) repeats them without a copy, as batch.steps(network.lead) does"
        raise ShapeError(
            f"item {number} of the stream has inputs of shape {tuple(u.shape)}, one step is {form.axes(time=False)}; {advice}", item=number
        )
    if step.reset is not False and step.reset is not True:
        step = step._replace(reset=_reset_of(step, number, len(form.lead) + 1))
    if u.device == form.device:
        return step
    device = form.device
    return Step(_on(u, device), _on(step.y, device), _on(step.weight, device), _on(step.mask, device), step.reset)


def sequence_of(item: Any, number: int, form: Form, batch_size: int | None) -> Sequence:
    """`item`, the `number`-th of a loader, as a `Sequence` on the network's device; `batch_size` is the loader's, where it has one.

    Raises:
        StreamError: it holds no inputs and targets, or their axes contradict one another.
        ShapeError, DTypeError: the inputs are no tensor with a time axis.
    """
    if hasattr(item, "inputs") and hasattr(item, "targets"):
        parts = [item.inputs, item.targets, getattr(item, "weights", None), getattr(item, "mask", None)]
    elif isinstance(item, tuple | list) and 2 <= len(item) <= 4:
        parts = [*item, None, None][:4]
    else:
        raise StreamError(
            f"sequence {number} is {_kind(item)}; it has to be (inputs, targets[, weights[, mask]]), or an object with these attributes", item=number
        )
    inputs, targets, weights, mask = parts
    for name, part in (("inputs", inputs), ("targets", targets), ("weights", weights), ("mask", mask)):
        if not isinstance(part, Tensor) and (part is not None or name == "inputs"):
            raise DTypeError(f"sequence {number}: {name} is of type {type(part).__name__}; make it a tensor", item=number)
    if form.lead and inputs.dim() == 2 + form.unit_dims:
        # One sequence for all runs; a repeat without a copy.
        if targets is not None and targets.shape[:2] == inputs.shape[:2]:
            targets = targets.expand(*form.lead, *targets.shape)
        inputs = inputs.expand(*form.lead, *inputs.shape)
    axis = len(form.lead) + 1
    if inputs.dim() != axis + 1 + form.unit_dims or inputs.shape[axis] == 0:
        raise ShapeError(
            f"sequence {number} has inputs of shape {tuple(inputs.shape)}; {form.axes(time=True)} with at least one step was expected", item=number
        )
    rows = tuple(inputs.shape[: axis + 1])
    turned = batch_size is not None and inputs.shape[axis - 1] > batch_size == inputs.shape[axis]
    if turned or (targets is not None and tuple(targets.shape[: axis + 1]) != rows):
        told = f"the loader's batch_size is {batch_size}" if turned else f"targets begin with {tuple(targets.shape[: axis + 1])}"
        raise StreamError(
            f"sequence {number}: inputs begin with {rows}, to be read as {form.axes(time=True)[: -len(', input)')]}), but {told}; "
            "bring all to that order, such as by x.transpose(0, 1), and to one length",
            item=number,
            inputs=tuple(inputs.shape),
        )
    for name, part, shapes in (("weights", weights, (rows[-1:], rows[-2:], rows)), ("mask", mask, (rows[-2:], rows))):
        if part is not None and tuple(part.shape) not in shapes:
            raise ShapeError(f"sequence {number}: {name} has shape {tuple(part.shape)}; (batch, time) is {rows[-2:]}", item=number)
    shared = weights.tolist() if weights is not None and weights.dim() == 1 else _on(weights, form.device)
    return Sequence(_on(inputs, form.device), _on(targets, form.device), shared, _on(mask, form.device), axis, rows[-1])


def _reset_of(step: Step, number: int, axes: int) -> Tensor | bool:
    """`step.reset` as a bool where it is one number, such as a flag out of an array; else one flag a sample, of which there are `axes` axes."""
    reset: Any = step.reset
    if getattr(reset, "shape", None) == () and hasattr(reset, "item"):
        reset = reset.item()
    if isinstance(reset, int) and reset in (0, 1):
        return bool(reset)
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
        kind = reset.dtype if isinstance(reset, Tensor) else f"{reset!r:.40} of type {type(reset).__name__}"
        raise DTypeError(f"item {number} of the stream: reset is {kind}; make it a bool, or a boolean tensor (batch,)", item=number)
    batch = tuple(step.u.shape[:axes])
    if tuple(reset.shape) not in (batch, batch[-1:]):
        raise ShapeError(f"item {number} of the stream: reset has shape {tuple(reset.shape)}; one entry a sample is {batch[-1:]}", item=number)
    return reset


def _on(part: Any, device: torch.device) -> Any:
    return part.to(device, non_blocking=True) if isinstance(part, Tensor) else part


def _kind(item: Any) -> str:
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}"
    return f"a tensor {tuple(item.shape)} without a target" if isinstance(item, Tensor) else f"of type {type(item).__name__}"


def _advice(item: Any) -> str:
    if hasattr(item, "inputs"):
        return "data that has a time axis goes through sequences(...)"
    return "a step is (u, y) or (u, y, weight), or a Step if it has a mask or begins a sequence; y is None where there is no target"
