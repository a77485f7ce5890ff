"""The recorded steps of a window as a checkpoint holds them: `<step>.<part>`, oldest first."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError
from pararnn_cola.learners.forms import Form, Group, check_forms, state_forms
from pararnn_cola.network import Network


def packed_by_step(memory: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The parts of each recorded step by name, oldest first.

    Raises:
        StreamError: a step is missing.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in memory.items():
        index, _, rest = name.partition(".")
        if rest:
            found.setdefault(index, {})[rest] = tensor
    if {*found} != {str(index) for index in range(len(found))}:
        raise StreamError(f"the checkpoint's window has the steps {', '.join(sorted(found))}, of which some are missing; it is damaged")
    return [found[str(index)] for index in range(len(found))]


def check_records(network: Network, memory: dict[str, Tensor], batch: tuple[int, ...], *, live: bool) -> None:
    """Raise `StreamError` if `memory` is no window over samples of shape `batch`; only the first step of a `live` one has the states before it."""
    steps, rows = packed_by_step(memory), Form(torch.bool, (batch,))
    number = Form(torch.int64, ((),))
    rest = {name: tensor for name, tensor in memory.items() if "." not in name}
    check_forms(rest, [Group({"owed": number}, needed=True), Group({"reset": rows}), Group({"foreign": Form(torch.bool, ((),))})])
    if not 0 <= int(memory["owed"]) <= len(steps):
        raise StreamError(f"the checkpoint owes the losses of {int(memory['owed'])} of {len(steps)} steps; it is damaged", owed=int(memory["owed"]))
    if steps and not batch:
        raise StreamError(f"the checkpoint has a window of {len(steps)} steps, but no states; it is damaged")
    for index, step in enumerate(steps):
        _check_step(network, index, step, batch, begun=not live or index == 0)


def _check_step(network: Network, index: int, step: dict[str, Tensor], batch: tuple[int, ...], *, begun: bool) -> None:
    weights, shape = network.readout.bias.dtype, network.recurrent[0].input_shape
    rows = Form(torch.bool, (batch,))
    found = {name: tensor for name, tensor in step.items() if name not in ("target", "weight", "inputs")}
    groups = [Group({"live": Form(torch.bool, ((), batch))}, needed=True), Group({"present": rows}), Group({"reset": rows})]
    if begun:
        groups.append(Group(state_forms(network, batch, "before"), needed=True))
    check_forms(found, groups)
    inputs, target, weight = step.get("inputs"), step.get("target"), step.get("weight")
    expected = None if shape is None else (*batch, *shape)
    fits = inputs is not None and inputs.dtype == weights and inputs.shape[: len(batch)] == batch and expected in (None, tuple(inputs.shape))
    if not fits or weight is None or tuple(weight.shape) not in ((), batch) or (target is not None and target.shape[: len(batch)] != batch):
        told = {name: tuple(part.shape) for name, part in step.items() if name in ("inputs", "target", "weight")}
        raise StreamError(f"step {index} of the checkpoint's window has {told} for samples of shape {batch}; it is damaged, or of another network")
