"""Names that users give to state spaces and layers, of options and of backends: what nothing answers to is refused where it is given."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence

from pararnn.errors import BackendError, ConfigError
from pararnn.registry import installed
from pararnn_s4.initialisation.mixtures import ARGUMENTS, arguments

# Of the builders of the parameters, whatever the initialisation.
ALWAYS = frozenset({"generator"})


def require_options(names: Iterable[str], init: str | Sequence[str], owner: type, *others: type) -> None:
    """Refuse `names` of options that neither the constructors of `owner` and `others` nor the initialisation `init` take.

    Raises:
        ConfigError: there are such names; the message has the closest name that would do, or all that the initialisation takes.
    """
    initial = arguments(init) | ALWAYS
    own = {name for kind in (owner, *others) for name in inspect.signature(kind).parameters}
    unknown = sorted(set(names) - own - initial)
    if unknown:
        faults = "; ".join(_fault(name, own, initial, init, owner.__name__) for name in unknown)
        raise ConfigError(faults, unknown=tuple(unknown))


def require_backend(backend: str, op: str) -> None:
    """Refuse a backend that nobody offers for `op`; whether one of that name can serve is asked where it is used.

    Raises:
        BackendError: no installed plugin has a backend of that name.
    """
    candidates = installed().backends(op)
    if backend != "auto" and not (isinstance(backend, str) and backend in candidates):
        names = ("auto", *candidates)
        close = difflib.get_close_matches(str(backend), names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise BackendError(f"{op} has no backend named {backend!r}; {hint}there are {', '.join(names)}", names=tuple(candidates))


def _fault(name: str, own: set[str], initial: frozenset[str], init: str | Sequence[str], owner: str) -> str:
    takes = ", ".join(sorted(initial - own))
    if name in ARGUMENTS:
        return f"init={init!r} of {owner} has no use for {name}; it takes {takes}"
    close = difflib.get_close_matches(name, sorted(own | initial), n=1)
    return f"{owner} has no option {name!r}; " + (f"did you mean {close[0]!r}?" if close else f"beside its own, init={init!r} takes {takes}")
