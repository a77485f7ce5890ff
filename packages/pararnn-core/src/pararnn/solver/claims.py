"""What a cell says of itself by its attributes, looked at in a fraction of the time that asking for them takes."""

from __future__ import annotations

import types
from typing import Any, Self

from torch import nn

from pararnn.compiler.watching import is_fixed

_MISSING = object()
# What the solver asks a cell for, besides the methods that it calls.
_NAMES = "structure state_size state_bounds exact_jacobian is_linear guess newton_iters solve_ops linearize jacobian"
NAMES = frozenset(_NAMES.split())
ASKED = NAMES | {"step", "readout"}
WATCHED = (*sorted(ASKED), "__getattr__", "__getattribute__")


class Claims:
    """The attributes of a cell, as they were.

    Attributes:
        counts: whether it has `newton_iters`.
    """

    @classmethod
    def of(cls, cell: nn.Module) -> Self | None:
        """The claims of `cell`; None where they cannot be told by looking at attributes, or it has a `guess` or operations of its own."""
        kind = type(cell)
        defined = {name: vars(home)[name] for home in reversed(kind.__mro__) for name in NAMES if name in vars(home)}
        is_plain = kind.__getattr__ is nn.Module.__getattr__ and kind.__getattribute__ is object.__getattribute__
        given = getattr(cell, "guess", None) is not None or bool(getattr(cell, "solve_ops", ()))
        made = {name for name, value in defined.items() if hasattr(type(value), "__get__") and not isinstance(value, types.FunctionType)}
        is_told = all(is_fixed(value) for name, value in cell.__dict__.items() if name in ASKED)
        return None if not is_plain or not is_told or given or made - {"state_size"} else cls(cell, bool(made))

    def __init__(self, cell: nn.Module, size_is_made: bool) -> None:
        self._kind, self._mro = type(cell), type(cell).__mro__
        homes = [vars(kind) for kind in self._mro if kind not in (nn.Module, object)]
        self._checks = tuple((home.get, name, home.get(name, _MISSING)) for home in homes for name in WATCHED)
        own = cell.__dict__
        self._own = tuple((name, own[name]) for name in own.keys() & ASKED)
        self._absent = ASKED - own.keys()
        self._size: Any = cell.state_size
        self._size_is_made = size_is_made
        self.counts = getattr(cell, "newton_iters", None) is not None

    def hold(self, cell: nn.Module) -> bool:
        """Whether `cell` claims the same."""
        if type(cell) is not self._kind or self._kind.__mro__ is not self._mro:
            return False
        for get, name, value in self._checks:
            if get(name, _MISSING) is not value:
                return False
        own = cell.__dict__
        for name, value in self._own:
            if own.get(name, _MISSING) is not value:
                return False
        if not own.keys().isdisjoint(self._absent):
            return False
        # Where `getattr` would find them too.
        for home in (own["_parameters"], own["_buffers"], own["_modules"]):
            if home and not home.keys().isdisjoint(NAMES):
                return False
        size: Any = cell.state_size if self._size_is_made else self._size
        return type(size) is int and size == self._size
