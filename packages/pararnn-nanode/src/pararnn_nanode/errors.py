"""What can go wrong while an equation is integrated, as errors of pararnn's hierarchy."""

from __future__ import annotations

from pararnn.errors import DifferentiationError, ParaRNNError


class NonFiniteStateError(ParaRNNError, ArithmeticError):
    """The state became NaN or infinite; `data` holds `time` and `step`."""


class StepUnderflowError(ParaRNNError, ArithmeticError):
    """An adaptive method needs steps below what the dtype can resolve, or more of them than were allowed."""


class NotReversibleError(DifferentiationError):
    """Walking back drifted away from the states of the walk forward, so gradients would be wrong; `data` holds `drift` and `allowed`."""
