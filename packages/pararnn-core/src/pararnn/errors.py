"""The error hierarchy: every error says what happened (with the numbers), why, and what to do next.

An error keeps the facts it speaks of in `data`, so that a program can read what a person reads in the message.
"""

from __future__ import annotations


class ParaRNNError(Exception):
    """Root of every error that pararnn raises on purpose."""

    def __init__(self, message: str, **data: object) -> None:
        super().__init__(message)
        self.data = data


def sentence(error: BaseException) -> str:
    """What `error` says, for use inside another message; errors of other libraries often need their type to be understood."""
    return str(error) if isinstance(error, ParaRNNError) else f"{type(error).__name__}: {error}"


class ConfigError(ParaRNNError, ValueError):
    """An option has a value that cannot work."""


class ShapeError(ParaRNNError, ValueError):
    """A tensor has the wrong shape."""


class DTypeError(ParaRNNError, TypeError):
    """A tensor has a dtype (or is of a type) that cannot be used here."""


class InputError(ParaRNNError, ValueError):
    """An input value cannot be used: non-finite, negative where that has no meaning, offsets out of order."""


class CellError(ParaRNNError, TypeError):
    """A cell does not follow the cell protocol."""


class StructureError(ParaRNNError, ValueError):
    """A cell's declared Jacobian structure does not describe its step."""


class ConvergenceError(ParaRNNError, RuntimeError):
    """The parallel solve was told not to walk, and did not converge."""


class DifferentiationError(ParaRNNError, RuntimeError):
    """A derivative was asked for that the chosen path cannot give exactly."""


class CompilationError(ParaRNNError, RuntimeError):
    """A step cannot be compiled into a kernel; `obstacles` holds every reason, a sentence each."""

    def __init__(self, message: str, *, obstacles: tuple[str, ...] = (), **data: object) -> None:
        super().__init__(message, obstacles=obstacles, **data)
        self.obstacles = obstacles


class PluginError(ParaRNNError, RuntimeError):
    """A plugin could not be loaded (raised only in strict mode), or two offer the same name."""


class UnknownNameError(PluginError, LookupError):
    """No installed plugin offers the name."""


class AmbiguousNameError(PluginError, LookupError):
    """Several plugins offer the name; ask for `distribution:name`."""


class BackendError(ParaRNNError, RuntimeError):
    """No backend can serve a request, or the one that was named cannot; the message holds the whole table."""


class AgreementError(ParaRNNError, AssertionError):
    """The parallel answer and the walked one differ by more than the tolerance."""


class ConformanceError(ParaRNNError, AssertionError):
    """A plugin failed a conformance check; the message names the fault."""


class PluginWarning(UserWarning):
    """A plugin could not be used and was left out."""
