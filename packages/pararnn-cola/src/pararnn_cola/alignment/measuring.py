"""A learner's signals and gradients beside the exact ones."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.alignment import measures
from pararnn_cola.alignment.closure import best_feedback, close
from pararnn_cola.alignment.exact import ExactSignals, exact_signals
from pararnn_cola.alignment.reports import AlignmentReport, GradientAlignment, LayerAlignment
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.result import Signals
from pararnn_cola.learners.statistics import ClosureConfig
from pararnn_cola.tasks.base import Batch

MARGIN = 0.1
"""COLA's default, for the best closure beside rules that have none."""
AT_CAP = 0.99
"""A gain counts as capped from this share of the bound on."""


def measure_alignment(learner: Learner, batch: Batch, *, warmup: int = 0) -> AlignmentReport:
    """How `learner` sees the sequences of `batch`, with its weights frozen, beside exact backpropagation through time.

    A copy of the learner, with all it has learned of the network so far, runs over the sequences from zero states; the learner itself, its
    statistics, gradients and network stay as they are. A COLA that has seen nothing yet starts as TBPTT-1: `warmup` lets the copy see the batch so
    many times before.

    Raises:
        CoverageError: the network is an ensemble.
    """
    if warmup < 0:
        raise ConfigError(f"warmup={warmup}; the sequences are seen 0 times or more before", warmup=warmup)
    exact = exact_signals(learner.network, batch.inputs, batch.targets, batch.weights, batch.mask, loss=learner.loss)
    probe = copy.deepcopy(learner)
    probe.update = "accumulate"
    for _ in range(warmup):
        _run(probe, batch)
    signals = _run(probe, batch)
    closure = _closure(learner)
    margin = MARGIN if closure is None else _margin(closure)
    layers = tuple(
        _layer(exact, index, None if signals is None else signals[index], margin, closure is not None) for index in range(len(exact.delta))
    )
    found = {name: probe.buffers.current(parameter) for name, parameter in probe.network.named_parameters()}
    gradients = {}
    for name, true in exact.gradients.items():
        gradient = found[name]
        mine = torch.zeros_like(true) if gradient is None else gradient
        gradients[name] = GradientAlignment(measures.gradient_cosine(mine, true), measures.norm_ratio(mine.double(), true.double()))
    return AlignmentReport(
        rule=type(learner).__name__, layers=layers, gradients=gradients, loss=exact.loss, batch=batch.inputs.shape[0], length=batch.inputs.shape[1]
    )


def _run(probe: Learner, batch: Batch) -> list[Signals] | None:
    """The signals `(batch, time, *units)` of each layer, None for rules without; the gradients are left in the probe's buffers."""
    # Sequences of the learner's own stream, an open window included, are none of this batch.
    probe._forget(None)
    probe.init(batch.inputs.shape[0])
    probe.buffers.load_state_dict(None)
    steps: list[tuple[Signals, ...] | None] = []
    for step in batch.steps():
        steps.append(probe.step(step.u, step.y, step.weight, step.mask, signals=True).signals)
    probe.flush()
    known = next((signals for signals in steps if signals is not None), None)
    if known is None:
        return None
    joined = []
    for index, example in enumerate(known):
        # A step without a loss has no signals, which is to say that they are zero.
        blank = torch.zeros_like(example.used)
        joined.append(
            Signals(
                torch.stack([blank if signals is None else signals[index].instantaneous for signals in steps], 1),
                torch.stack([blank if signals is None else signals[index].used for signals in steps], 1),
            )
        )
    return joined


def _layer(exact: ExactSignals, index: int, signals: Signals | None, margin: float, capped: bool) -> LayerAlignment:
    delta, instantaneous = (measures.flat(values[index]) for values in (exact.delta, exact.instantaneous))
    slope, leak = exact.slopes[index], exact.leaks[index]
    alpha, persistence = measures.persistence(delta)
    early = measures.before_last(delta)
    used = None if signals is None else measures.flat(signals.used)
    gains = None if signals is None or used is None else measures.gains(used, measures.flat(signals.instantaneous))
    closed: Tensor | None = None
    if slope is not None:
        p, own = measures.before_last(measures.flat(slope)), measures.before_last(measures.flat(leak)) if isinstance(leak, Tensor) else leak
        d = measures.before_last(instantaneous)
        closed = close(d, p, own, alpha, best_feedback(early, d, p, own, alpha), margin)
    return LayerAlignment(
        signal=None if used is None else measures.cosine(measures.before_last(used), early),
        instantaneous=measures.cosine(measures.before_last(instantaneous), early),
        closure=None if closed is None else measures.cosine(closed, early),
        sign=measures.sign_agreement(measures.before_last(instantaneous), early),
        persistence=persistence,
        participation=measures.participation_ratio(early),
        gain=None if gains is None else measures.median(gains),
        at_cap=None if gains is None or not capped or not gains.numel() else float((gains >= AT_CAP / margin).double().mean()),
        norm=None if used is None else measures.norm_ratio(used, delta),
    )


def _closure(learner: Learner) -> ClosureConfig | None:
    """How the rule bounds its signals, where it closes them as COLA does."""
    closure = getattr(learner, "closure", None)
    return closure if isinstance(closure, ClosureConfig) else None


def _margin(closure: ClosureConfig) -> float:
    margin = closure.margin
    return float(margin) if not isinstance(margin, Tensor) or margin.numel() == 1 else MARGIN
