"""Checks of what batches, weights and losses do to a gradient, and of its bound."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError
from pararnn_cola.conformance.samples import BATCH, Maker, gradients, walk
from pararnn_cola.learners.base import Learner

TIME = 9


def check_batch_is_a_mean(make: Maker) -> str | None:
    """With every row twice the gradients are the same, and a batch of one is a batch."""
    inputs, targets = make.stream(TIME)
    found = {}
    for name, rows in (("once", [0, 1, 2]), ("turned", [1, 2, 0]), ("twice", [0, 1, 2, 0, 1, 2]), ("one", [0]), ("one twice", [0, 0])):
        learner = make()
        walk(learner, (inputs[:, rows], targets[:, rows]), apply=False)
        found[name] = gradients(learner)
    if _apart(found["once"], found["turned"]) is not None:
        return "the rule tells rows apart by their place, as those with random numbers do, so twice the batch is another one"
    for one, two, what in (("once", "twice", f"{BATCH} rows"), ("one", "one twice", "one row")):
        if (where := _apart(found[one], found[two])) is not None:
            raise ConformanceError(f"with {what} given twice the gradient differs, {where}; sum over the batch, and scale by 1/batch")
    return None


def check_single_sample(make: Maker) -> None:
    """A batch of one has the outputs of the network's walk, and the loss of its sample."""
    learner, (inputs, targets) = make(), make.stream(TIME, 1)
    states = learner.network.zero_state(1)
    for time in range(TIME):
        with torch.no_grad():
            output, states = learner.network.advance(inputs[time], states)
        result = learner.step(inputs[time], targets[time])
        if (how := difference(result.output, output)) is not None:
            raise ConformanceError(f"with one sample the output of step {time} and that of Network.advance differ {how}; keep the batch dimension")
        if result.loss is None or (how := difference(result.loss, (output - targets[time]).square().mean())) is not None:
            raise ConformanceError(f"with one sample the loss of step {time} differs {how or 'as there is none'} from that of the sample")


def check_number_as_weight(make: Maker) -> None:
    """A weight that is one number does what a tensor full of it does."""
    inputs, targets = make.stream(TIME)
    found = []
    for weight in (2.5, torch.full((BATCH,), 2.5, dtype=torch.float64)):
        learner = make()
        losses = [learner.step(u, y, weight).loss for u, y in zip(inputs, targets, strict=True)]
        found.append(gradients(learner) | {"the loss": losses[-1]})
    if (where := _apart(*found)) is not None:
        raise ConformanceError(f"weight=2.5 and a tensor full of 2.5 differ, {where}; let Rows.weighted weigh losses and errors")


def check_cross_entropy(make: Maker) -> str | None:
    """With loss="cross_entropy" losses are those of torch, and the readout's bias has their gradient."""
    learner = _made(make, loss="cross_entropy")
    if learner is None:
        return "make_learner takes no loss"
    inputs, _ = make.stream(TIME)
    classes = torch.randint(learner.network.readout.output_size, (TIME, BATCH))
    states, expected = learner.network.zero_state(BATCH), torch.zeros(learner.network.readout.output_size, dtype=torch.float64)
    for u, y in zip(inputs, classes, strict=True):
        with torch.no_grad():
            output, states = learner.network.advance(u, states)
        result = learner.step(u, y)
        loss = torch.nn.functional.cross_entropy(output, y)
        if result.loss is None or (how := difference(result.loss, loss)) is not None:
            raise ConformanceError(f"the cross entropy and that of torch differ {how or 'as there is none'}; hand targets to self.loss as they are")
        expected = expected + (output.softmax(-1) - torch.nn.functional.one_hot(y, output.shape[-1])).mean(0)
    bias = gradients(learner)["readout.bias"]
    if bias is not None and (how := difference(bias, expected, "gradients")) is not None:
        raise ConformanceError(
            f"with cross entropy the gradient of readout.bias differs {how} from the exact one; use the gradient of self.loss.both"
        )
    return None


def check_clip(make: Maker) -> str | None:
    """With `clip` no update is by a gradient of a larger norm."""
    learner, bound = _made(make, clip=1e-3), 1e-3
    if learner is None:
        return "make_learner takes no clip"
    walk(learner, make.stream(TIME), apply=False)
    learner.apply()
    norm = torch.stack([g.norm() for g in gradients(learner).values() if g is not None]).norm().item()
    if norm > 1.01 * bound:
        raise ConformanceError(f"with clip={bound} an update was by a gradient of norm {norm:.3g}; leave apply() as it is, which bounds the buffers")
    return None


def _made(make: Maker, **option: object) -> Learner | None:
    """A learner with one option more; None where the maker does not pass it on."""
    try:
        return make.make_learner(make.network(), update="accumulate", lr=0.05, **option)
    except TypeError:
        return None


def _apart(one: dict[str, Tensor | None], two: dict[str, Tensor | None]) -> str | None:
    for name, first in one.items():
        second = two[name]
        if first is None or second is None:
            continue
        if (how := difference(second, first, "gradients")) is not None:
            return f"{name} {how}"
    return None
