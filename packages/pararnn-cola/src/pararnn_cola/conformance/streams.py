"""Checks of a stream that is cut, saved, reset or padded."""

from __future__ import annotations

import copy
import io

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError
from pararnn_cola.conformance.samples import BATCH, Maker, expect_same, gradients, walk
from pararnn_cola.errors import StreamError

TIME, CUT = 30, 13


def check_chunks(make: Maker) -> None:
    """A learner that is handed its own tensors in the middle of a stream goes on to the bit."""
    whole, pieces, stream = make(frozen=False), make(frozen=False), make.stream(TIME)
    walk(whole, stream)
    for start, stop in ((0, 1), (1, CUT), (CUT, TIME)):
        walk(pieces, stream, start, stop)
        pieces.assign({name: tensor.clone() for name, tensor in pieces.tensors().items()})
    expect_same(
        pieces.state_dict(),
        whole.state_dict(),
        "handed its own tensors, the learner goes on differently in {where}; take over in _recall all that _memory names",
    )


def check_resume(make: Maker) -> None:
    """Saved, read by `torch.load(weights_only=True)` and loaded into a new learner, it goes on to the bit."""
    whole, stream = make(frozen=False), make.stream(TIME)
    walk(whole, stream)
    first = make(frozen=False)
    walk(first, stream, 0, CUT)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    try:
        saved = torch.load(file, weights_only=True)
    except Exception as error:
        raise ConformanceError(
            f"torch.load(weights_only=True) cannot read the state_dict ({error}); keep tensors, numbers and strings in it"
        ) from error
    second = make(frozen=False)
    walk(second, make.stream(3))
    try:
        second.load_state_dict(saved)
    except StreamError as error:
        raise ConformanceError(
            f"an equal learner refuses the state_dict ({error}); name in _memory what a step hands to the next, in _options what never changes"
        ) from error
    walk(second, stream, CUT)
    fault = "after state_dict and load_state_dict the stream goes on differently in {where}; name in _memory all that a step hands to the next"
    expect_same(second.state_dict(), whole.state_dict(), fault)


def check_copies(make: Maker) -> None:
    """A deep copy goes on to the bit, and leaves the original alone."""
    learner, stream = make(frozen=False), make.stream(TIME)
    walk(learner, stream, 0, CUT)
    twin = copy.deepcopy(learner)
    before = learner.state_dict()
    walk(twin, stream, CUT)
    expect_same(learner.state_dict(), before, "steps of a deep copy changed the original ({where}); keep nothing at module level")
    walk(learner, stream, CUT)
    expect_same(twin.state_dict(), learner.state_dict(), "a deep copy goes on differently in {where}; keep all state in attributes")


def check_row_reset(make: Maker) -> None:
    """A row that is reset answers as a new stream does, and the other rows as if nothing had happened."""
    learner, other, stream = make(), make(), make.stream(2 * CUT)
    rows = torch.zeros(BATCH, dtype=torch.bool).index_fill(0, torch.tensor([1]), value=True)
    walk(learner, stream, 0, CUT, apply=False)
    walk(other, stream, 0, CUT, apply=False)
    learner.reset(rows)
    fresh = make().init(BATCH)
    found, untouched, new = (walk(one, stream, CUT, apply=False) for one in (learner, other, fresh))
    for time, (output, old, begun) in enumerate(zip(found, untouched, new, strict=True)):
        if (how := difference(output[rows], begun[rows])) is not None:
            raise ConformanceError(
                f"{time} steps after reset(rows) the row answers differently from a new stream, {how}; _forget(rows) drops all of it"
            )
        if (how := difference(output[~rows], old[~rows])) is not None:
            raise ConformanceError(f"{time} steps after reset(rows) another row answers differently, {how}; touch the rows that are true only")
    if all(p.grad is None for p in learner.network.parameters()) and any(g is not None for g in gradients(other).values()):
        raise ConformanceError("reset(rows) lost gradients that were not applied; keep them")


def check_nothing_crosses_a_reset(make: Maker) -> None:
    """After `reset(statistics=True)` what is learned depends neither on inputs nor on targets from before."""
    found, after = [], make.stream(CUT)
    for _ in range(2):
        learner = make()
        walk(learner, make.stream(CUT), apply=False)
        learner.flush()
        learner.reset(statistics=True)
        learner.network.zero_grad()
        walk(learner, after, apply=False)
        found.append(gradients(learner))
    expect_same(
        found[0],
        found[1],
        "after reset(statistics=True) the gradient still depends on the sequence before ({where}); drop traces and previous signals in _forget, "
        "coefficients in _forget_statistics",
    )


def check_padding(make: Maker) -> None:
    """What stands in rows without a step changes nothing, NaN included, and their state stays."""
    (inputs, targets), found = make.stream(TIME), []
    present = torch.rand(TIME, BATCH) > 0.3
    for filler in (0.0, float("nan")):
        learner = make(frozen=False)
        for time in range(TIME):
            rows = present[time]
            u, y = (_filled(tensor[time], rows, filler) for tensor in (inputs, targets))
            before = None if learner.states is None else learner.states[0][0].clone()
            learner.step(u, y, mask=rows)
            if before is not None and learner.states is not None and not torch.equal(learner.states[0][0][~rows], before[~rows]):
                raise ConformanceError(f"step {time} moved the state of rows that the mask leaves out; keep the old state there (layers.base.select)")
            if learner.update == "accumulate" and time % 10 == 9:
                learner.apply()
        found.append(learner.state_dict())
    expect_same(found[1], found[0], "what stands in rows that the mask leaves out matters ({where}); use torch.where, for 0 * NaN is NaN")


def check_rows_without_weight(make: Maker) -> None:
    """Targets of rows with weight 0 change nothing, NaN included."""
    (inputs, targets), found = make.stream(TIME), []
    weights = (torch.rand(TIME, BATCH) > 0.3).to(inputs.dtype)
    for filler in (0.0, float("nan")):
        learner = make(frozen=False)
        for time in range(TIME):
            learner.step(inputs[time], _filled(targets[time], weights[time] > 0, filler), weights[time])
            if learner.update == "accumulate" and time % 10 == 9:
                learner.apply()
        found.append(learner.state_dict())
    expect_same(found[1], found[0], "targets of rows with weight 0 matter ({where}); use Rows.weighted on losses and errors")


def _filled(values: Tensor, rows: Tensor, filler: float) -> Tensor:
    return torch.where(rows.reshape(-1, *(1,) * (values.dim() - 1)), values, torch.full_like(values, filler))
