"""What can go wrong while a network learns online, as errors of pararnn's hierarchy, and what is only warned of."""

from __future__ import annotations

from pararnn.errors import ParaRNNError


class CoverageError(ParaRNNError, TypeError):
    """A rule was given a network that its derivation does not cover, or a parameter that it would leave without a gradient."""


class NonFiniteLossError(ParaRNNError, ArithmeticError):
    """The loss became NaN or infinite; `data` holds `step` and `loss`. Where it is noticed at once, nothing has been changed yet."""


class StreamError(ParaRNNError, RuntimeError):
    """Steps came in an order, or a checkpoint from a learner, that would lose state."""


class CriticalityWarning(UserWarning):
    """No gain in the range brings the exponent to its target, or the drive was made up because none was given."""
