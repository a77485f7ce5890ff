"""What can go wrong while an equation is integrated, as errors of pararnn's hierarchy, and what is only warned of."""

from __future__ import annotations

from pararnn.errors import DifferentiationError, ParaRNNError


class NonFiniteStateError(ParaRNNError, ArithmeticError):
    """The state became NaN or infinite; `data` holds `time` and `step`."""


class StepUnderflowError(ParaRNNError, ArithmeticError):
    """An adaptive method needs steps below what the dtype can resolve, or more of them than were allowed."""


class NotReversibleError(DifferentiationError):
    """Walking back drifted away from the states of the walk forward, so gradients would be wrong; `data` holds `drift` and `allowed`."""


class PathWarning(UserWarning):
    """A path has more matrices than the steps can tell apart, or is read at times that it was not made for."""


class InexactGradientWarning(UserWarning):
    """The gradient asked for belongs to the continuous problem, and is far from that of the steps that are taken."""


class UnstableMethodWarning(UserWarning):
    """What a method carries beside the state has grown beyond it, as reversible methods do for decaying equations; the states are wrong."""
