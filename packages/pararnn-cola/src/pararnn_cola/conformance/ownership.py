"""Checks of memory and of ownership: no graph is kept, nothing grows, nothing of the user's is written to, nothing changes where a step fails."""

from __future__ import annotations

import gc
import pickle

import torch
from torch import Tensor

from pararnn.errors import ConformanceError
from pararnn_cola.conformance.samples import Maker, expect_same, snapshot, walk
from pararnn_cola.learners.base import Learner

TIME = 10
SLACK = 64
"""Bytes by which a pickle may differ where nothing is kept: numbers grow longer."""


def check_no_graph(make: Maker) -> None:
    """Nothing that is kept or given holds a graph."""
    learner, (inputs, targets) = make(), make.stream(TIME)
    given: dict[str, Tensor] = {}
    for u, y in zip(inputs, targets, strict=True):
        result = learner.step(u, y, signals=True)
        given = {"result.output": result.output, "result.loss": result.loss if result.loss is not None else result.output}
        for index, layer in enumerate(result.signals or ()):
            given |= {f"result.signals[{index}].used": layer.used, f"result.signals[{index}].instantaneous": layer.instantaneous}
        given |= learner.tensors()
        for name, tensor in given.items():
            if tensor.requires_grad:
                raise ConformanceError(f"{name} holds a graph, which would keep the whole past alive; detach what is kept, and what is given")


def check_flat_memory(make: Maker) -> None:
    """After more steps as many tensors are alive as after few, once the weights have moved."""
    learner, stream = make(frozen=False), make.stream(20)
    counts, sizes = [], []
    for _ in range(2):
        for _ in range(2):
            walk(learner, stream)
            learner.apply()
        gc.collect()
        counts.append(sum(issubclass(type(one), Tensor) for one in gc.get_objects()))
        sizes.append(_size(learner))
    if counts[1] > counts[0]:
        raise ConformanceError(
            f"{counts[0]} tensors were alive after 40 steps and {counts[1]} after 80; keep values of a bounded number of steps, and no results"
        )
    if sizes[1] > sizes[0] + SLACK:
        raise ConformanceError(
            f"pickled, the learner had {sizes[0]} bytes after 40 steps and {sizes[1]} after 80; keep values of a bounded number of steps"
        )


def _size(learner: Learner) -> int:
    """Bytes of all that a learner holds; 0 where its class, or something in it, cannot be pickled."""
    try:
        return len(pickle.dumps(learner))
    except (pickle.PicklingError, AttributeError, TypeError):
        return 0


def check_arguments_stay(make: Maker) -> None:
    """Inputs, targets, weights and masks are not written to, and buffers may be filled anew after a step."""
    found = []
    for reuse in (False, True):
        learner = make(frozen=False)
        torch.manual_seed(1)
        (inputs, targets), weights = make.stream(TIME), torch.rand(TIME, 3, dtype=torch.float64)
        masks = torch.rand(TIME, 3) > 0.2
        held = [tensor[0].clone() for tensor in (inputs, targets, weights, masks)]
        for time in range(TIME):
            fresh = [tensor[time].clone() for tensor in (inputs, targets, weights, masks)]
            for buffer, tensor in zip(held, fresh, strict=True):
                buffer.copy_(tensor)
            # Masks and weights make copies of all that a rule sees, so every other step goes without.
            given = (held if reuse else fresh)[: 4 if time % 2 else 2]
            versions = [tensor._version for tensor in given]
            learner.step(*given)
            if versions != [tensor._version for tensor in given]:
                raise ConformanceError(f"step {time} writes into a tensor that it was given; compute a new one")
            for buffer in held:
                buffer.zero_()
        learner.apply()
        found.append(learner.state_dict())
    expect_same(
        found[1], found[0], "a buffer that was filled anew after a step changed what was learned ({where}); keep a copy of what is needed later"
    )


def check_results_are_given_away(make: Maker) -> None:
    """Writing into a result changes nothing that the learner does next."""
    plain, edited, (inputs, targets) = make(frozen=False), make(frozen=False), make.stream(TIME)
    for time in range(TIME):
        plain.step(inputs[time], targets[time], signals=True)
        result = edited.step(inputs[time], targets[time], signals=True)
        for tensor in (result.output, result.loss, *(part for layer in result.signals or () for part in (layer.instantaneous, layer.used))):
            if tensor is not None:
                tensor.fill_(1e6)
    plain.apply()
    edited.apply()
    expect_same(edited.state_dict(), plain.state_dict(), "writing into a result changed the learner ({where}); give copies of what is kept")


def check_failed_steps_change_nothing(make: Maker) -> None:
    """A loss that is not finite, or a target of a wrong shape, raises and leaves everything as it was."""
    learner, (inputs, targets) = make(frozen=False), make.stream(TIME)
    walk(learner, (inputs, targets), 0, TIME - 1)
    for what, target in (("a target of NaN", targets[-1] * float("nan")), ("a target of a wrong shape", targets[-1][:, :1])):
        before = snapshot(learner)
        try:
            learner.step(inputs[-1], target)
        except Exception:
            expect_same(
                snapshot(learner), before, f"{what} raised but changed {{where}}; call self.loss.check and self._finite before anything is set"
            )
        else:
            raise ConformanceError(f"{what} raised nothing; call self.loss.check(output, target) and self._finite(loss, u) in _learn")
