"""One step of a stream as it was seen: what is needed to run it again under autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn_cola.layers.base import rows_like, select
from pararnn_cola.learners.buffers import HALF
from pararnn_cola.learners.rows import Rows, all_finite
from pararnn_cola.losses import Loss
from pararnn_cola.network import Network, States


@dataclass(frozen=True, eq=False)
class Recorded:
    """One step's inputs, targets and rows, and what happened just before it; its tensors belong to nobody else."""

    inputs: Tensor
    target: Tensor | None
    rows: Rows
    reset: Tensor | None = None
    """`(*lead, batch)`, rows in which a sequence begins with this step"""
    before: States | None = None
    """the states that the step started from, where they were kept"""

    @classmethod
    def of(cls, u: Tensor, target: Tensor | None, rows: Rows, reset: Tensor | None, before: States | None) -> Recorded:
        """A record of copies, so that a buffer which is filled anew at each step may be given."""
        kept = Rows(
            None if rows.present is None else rows.present.clone(),
            rows.live.clone() if isinstance(rows.live, Tensor) else rows.live,
            rows.weight.detach().clone() if isinstance(rows.weight, Tensor) else rows.weight,
        )
        return cls(u.detach().clone(), None if target is None else target.detach().clone(), kept, reset, before)

    def pack(self) -> dict[str, Tensor]:
        """The record as tensors by name; numbers and bools become tensors without dimensions."""
        named = {"inputs": self.inputs, "live": _tensor(self.rows.live), "weight": _tensor(self.rows.weight)}
        for name, value in (("target", self.target), ("present", self.rows.present), ("reset", self.reset)):
            if value is not None:
                named[name] = value
        for index, state in enumerate(self.before or ()):
            named.update({f"before.{index}.{part}": tensor for part, tensor in enumerate(state)})
        return named

    @classmethod
    def unpack(cls, named: dict[str, Tensor]) -> Recorded:
        """The record that `pack` gave."""
        live, weight = named["live"], named["weight"]
        rows = Rows(named.get("present"), live if live.dim() else bool(live), weight if weight.dim() else float(weight))
        before: list[list[Tensor]] = []
        for name, tensor in named.items():
            kind, _, rest = name.partition(".")
            if kind == "before":
                if int(rest.partition(".")[0]) == len(before):
                    before.append([])
                before[-1].append(tensor)
        return cls(named["inputs"], named.get("target"), rows, named.get("reset"), tuple(tuple(state) for state in before) or None)


def advance(network: Network, u: Tensor, states: States, present: Tensor | None) -> tuple[Tensor, States]:
    """The top layer's output and the next states; rows that are not `present` keep theirs. Differentiable."""
    following = []
    for layer, state in zip(network.recurrent, states, strict=True):
        new, _ = layer(u, state)
        following.append(new if present is None else select(present, new, state, layer.unit_dims))
        u = new[0]
    return u, tuple(following)


def advance_apart(network: Network, u: Tensor, states: States, present: Tensor | None) -> tuple[Tensor, States]:
    """`advance`, but that rows with an input, or a next state, of NaN or infinity have no graph: there, a gradient of zero would become NaN in all.

    Looked at on the CPU only; on a GPU it would stop the stream at each step.
    """
    top, following = advance(network, u, states, present)
    if u.device.type != "cpu" or all(all_finite(tensor) for tensor in (u, *_parts(following))):
        return top, following
    rows = u.dim() - network.recurrent[0].unit_dims
    sound = sound_rows(u, following, rows)
    values = top.detach(), detached(following)
    top, following = advance(network, blank_rows(u, sound), tuple(tuple(blank_rows(part, sound) for part in state) for state in states), present)
    mixed = tuple(tuple(_mixed(sound, *pair) for pair in zip(new, old, strict=True)) for new, old in zip(following, values[1], strict=True))
    return _mixed(sound, top, values[0]), mixed


def sound_rows(u: Tensor, states: States, rows: int) -> Tensor:
    """The samples, over the first `rows` dimensions, whose inputs and states are all finite."""
    return torch.stack([tensor.isfinite().flatten(rows).all(-1) for tensor in (u, *_parts(states))]).all(0)


def blank_rows(values: Tensor, sound: Tensor) -> Tensor:
    """`values` with zeros in the samples that are not `sound`."""
    return _mixed(sound, values, torch.zeros((), dtype=values.dtype, device=values.device))


def _parts(states: States) -> list[Tensor]:
    return [tensor for state in states for tensor in state]


def _mixed(rows: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows_like(rows, chosen, chosen.dim() - rows.dim()), chosen, other)


def judge(loss: Loss, output: Tensor, target: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The weighted loss, mean over the batch, `lead`, and its gradient by `output`; neither holds a graph."""
    answer = output.detach()
    answer = answer.float() if answer.dtype in HALF else answer
    loss.check(answer, target)
    losses, errors = loss.both(answer, rows.blank(target))
    return rows.weighted(losses, 0).mean(-1), (rows.weighted(errors, 1) / losses.shape[-1]).to(output.dtype)


def zero_rows(network: Network, states: States, rows: Tensor, batch: tuple[int, ...]) -> States:
    """`states` with those of a fresh sequence where `rows` is true; the other rows keep their graph."""
    zero = network.zero_state(*batch)
    return tuple(select(rows, new, old, layer.unit_dims) for new, old, layer in zip(zero, states, network.recurrent, strict=True))


def detached(states: States) -> States:
    """The values of `states` without their graph."""
    return tuple(tuple(tensor.detach() for tensor in state) for state in states)


def _tensor(value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor):
        return value
    # On the CPU wherever the network is: it is Python that reads it.
    return torch.tensor(value, dtype=torch.bool if isinstance(value, bool) else torch.float64, device="cpu")
