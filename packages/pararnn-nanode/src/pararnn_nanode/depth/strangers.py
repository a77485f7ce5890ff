"""Tensors with gradients that a field reads and nobody named, which windows, solved anew for the backward pass, would give none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.outside import outsiders
from pararnn_nanode.integrate.reads import Drive
from pararnn_nanode.integrate.schedule import Schedule


def refuse_strangers(field: Field, x: Tensor, schedule: Schedule, u: Drive, steps: Sequence[int], known: Sequence[Tensor]) -> None:
    """Raise `DifferentiationError` where the field reads tensors with gradients that the backward pass of windows would leave out.

    Args:
        steps: the steps at whose starts it is asked.
        known: tensors outside of the module that the backward pass reaches.
    """
    chosen = list(steps)
    time = schedule.knots[chosen].detach().to(x.device)
    given = _given(u, x, time, chosen)
    state = x.detach().expand(len(chosen), *x.shape).clone().requires_grad_()

    def read() -> list[Tensor]:
        slope = field.evaluate_steps(state, field.weights(time, time, given))
        return outsiders(slope, (state, *field.parameters(), *known))

    with torch.enable_grad():
        found = read()
        # Leaves that the field makes for itself in every evaluation, to differentiate by them, are nobody's to name.
        again = {id(leaf) for leaf in read()} if found else set()
    strangers = [leaf for leaf in found if id(leaf) in again]
    if strangers:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in strangers[:4])
        raise DifferentiationError(
            f"the field reads {len(strangers)} tensors that require grad (shapes {shapes}) and are no parameters of its module, so "
            "parallel='windowed' would give them none; make the field a module that owns them, name them by parameters=(W,), or use parallel='picard'"
        )


def _given(u: Drive, x: Tensor, time: Tensor, steps: list[int]) -> Tensor | None:
    if u is None:
        return None
    if not isinstance(u, Tensor):
        return u(time)
    return (u[steps] if u.ndim == x.ndim + 1 else u.expand(len(steps), *u.shape)).detach()
