"""Checks of what a rule learns: answers, losses, gradients, and steps that have nothing to learn from."""

from __future__ import annotations

import torch

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError
from pararnn_cola.conformance.samples import Maker, expect_same, gradients, snapshot, walk
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.result import StepResult

TIME = 9


def check_interface(make: Maker) -> None:
    """The rule is a `Learner` that names itself, and a step gives a `StepResult`."""
    learner = make()
    if not isinstance(learner, Learner):
        raise ConformanceError(f"make_learner gives a {type(learner).__name__}; a rule is a subclass of pararnn_cola.Learner")
    if type(learner).__name__ not in repr(learner):
        raise ConformanceError(
            f"repr is {learner!r}, without {type(learner).__name__}; extend _settings instead of __repr__, so that users see the rule"
        )
    inputs, targets = make.stream(1)
    result = learner.step(inputs[0], targets[0])
    if not isinstance(result, StepResult) or result.loss is None or result.loss.shape != learner.network.lead:
        raise ConformanceError(f"step with a target gives {result!r}; _learn returns StepResult(output, loss), the loss a mean over the batch")


def check_outputs_and_losses(make: Maker) -> None:
    """Outputs are those of the network's walk with the weights before the update, losses the weighted mean over the batch."""
    learner, (inputs, targets) = make(frozen=False), make.stream(TIME)
    states = learner.network.zero_state(inputs.shape[1])
    weight = torch.linspace(0.5, 1.5, inputs.shape[1], dtype=inputs.dtype)
    for time in range(TIME):
        with torch.no_grad():
            output, states = learner.network.advance(inputs[time], states)
        result = learner.step(inputs[time], targets[time], weight)
        if (how := difference(result.output, output)) is not None:
            raise ConformanceError(f"the output of step {time} and that of Network.advance differ {how}; answer before the weights move")
        loss = ((output - targets[time]).square().mean(-1) * weight).mean()
        if result.loss is None or (how := difference(result.loss, loss)) is not None:
            raise ConformanceError(
                f"the loss of step {time} and the weighted mean over the batch differ {how or 'as there is none'}; divide by the batch"
            )


def check_readout_gradient(make: Maker) -> None:
    """The gradient of the readout is exact: that of all weighted losses with the states as they were."""
    learner, (inputs, targets) = make(), make.stream(TIME)
    weights = torch.rand(targets.shape[:2], dtype=inputs.dtype) * (torch.rand(targets.shape[:2]) > 0.3)
    states, total = learner.network.zero_state(inputs.shape[1]), torch.zeros((), dtype=inputs.dtype)
    for u, y, weight in zip(inputs, targets, weights, strict=True):
        output, states = learner.network.advance(u, states)
        states = tuple(tuple(part.detach() for part in state) for state in states)
        total = total + ((output - y).square().mean(-1) * weight).mean()
        learner.step(u, y, weight)
    named = dict(learner.network.readout.named_parameters(prefix="readout"))
    found = gradients(learner)
    for name, truth in zip(named, torch.autograd.grad(total, list(named.values())), strict=True):
        gradient = found[name]
        how = "as there is none" if gradient is None else difference(gradient, truth, "gradients")
        if how is not None:
            raise ConformanceError(
                f"the gradient of {name} and the exact one differ {how}; use Readout.add_gradients with the gradient of the weighted loss by the "
                "output, zero in rows with weight 0 (Rows.weighted), and 1/batch as scale"
            )


def check_every_parameter_learns(make: Maker) -> None:
    """After some steps each parameter that is not frozen has a gradient other than zero; one that is frozen has none and stays."""
    learner, stream = make(), make.stream(TIME)
    walk(learner, stream, apply=False)
    for name, gradient in gradients(learner).items():
        if gradient is None or not gradient.isfinite().all() or not gradient.any():
            what = "no gradient" if gradient is None else "a gradient of zeros" if not gradient.any() else "a gradient that is not finite"
            raise ConformanceError(f"after {TIME} steps {name} has {what}; fill every buffer of self.buffers.open(), or refuse it in _check_coverage")
    name = next(iter(dict(learner.network.named_parameters())))
    network = make.network()
    frozen = network.get_parameter(name).requires_grad_(False)
    before = frozen.detach().clone()
    held = make.make_learner(network, update="accumulate", lr=0.05)
    walk(held, stream, apply=False)
    held.apply()
    if frozen.grad is not None or not torch.equal(frozen, before):
        raise ConformanceError(
            f"{name} is frozen, but {'has a gradient' if frozen.grad is not None else 'moved'}; its buffer is missing for a reason"
        )


def check_gradients_add_up(make: Maker) -> None:
    """Gradients add up until an update, or until somebody zeroes them, and start anew then."""
    stream, middle = make.stream(2 * TIME), TIME
    kept, zeroed, applied = make(), make(), make()
    for learner in (kept, zeroed, applied):
        walk(learner, stream, 0, middle, apply=False)
    first = gradients(kept)
    zeroed.flush()
    zeroed.network.zero_grad()
    weights = {name: p.detach().clone() for name, p in applied.network.named_parameters()}
    applied.apply()
    applied.network.load_state_dict(weights)
    for learner in (kept, zeroed, applied):
        walk(learner, stream, middle, apply=False)
    whole, second, anew = gradients(kept), gradients(zeroed), gradients(applied)
    for name, gradient in whole.items():
        parts = [part[name] for part in (first, second, anew)]
        if gradient is None or any(part is None for part in parts):
            raise ConformanceError(f"{name} has no gradient; fill every buffer of self.buffers.open()")
        one, two, three = (part for part in parts if part is not None)
        if (how := difference(gradient, one + two, "gradients")) is not None:
            raise ConformanceError(f"the gradient of {name} of two stretches and the sum of both differ {how}; add to the buffers, do not set them")
        if (how := difference(three, two, "gradients")) is not None:
            raise ConformanceError(f"the gradient of {name} after an update and one from zero differ {how}; buffers.open() starts anew by itself")


def check_target_free_steps(make: Maker) -> None:
    """A step without a target answers and moves the state; weights, gradients and optimizer stay."""
    learner, (inputs, targets) = make(frozen=False), make.stream(TIME)
    walk(learner, (inputs, targets), 0, TIME - 1)
    learner.apply()
    before = snapshot(learner)
    state = [part.clone() for layer in learner.states or () for part in layer]
    result = learner.step(inputs[-1])
    if result.loss is not None:
        raise ConformanceError("a step without a target gives a loss; StepResult(output, None) says that there is none")
    for what in ("weights", "gradients", "optimizer"):
        expect_same(snapshot(learner)[what], before[what], f"a step without a target changed the {what} ({{where}})")
    if all(torch.equal(one, part) for one, part in zip(state, (part for layer in learner.states or () for part in layer), strict=True)):
        raise ConformanceError("a step without a target left the state where it was; set self.states in every step")
