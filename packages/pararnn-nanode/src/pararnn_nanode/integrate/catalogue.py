"""The names under which fixed-step methods are known."""

from __future__ import annotations

from pararnn.errors import ConfigError
from pararnn_nanode.integrate.alf import ALF_METHOD
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.reversible_heun import REVERSIBLE_HEUN
from pararnn_nanode.integrate.runge_kutta import EULER, HEUN, MIDPOINT, RK4, RK4_38

METHODS: dict[str, Method] = {method.name: method for method in (EULER, MIDPOINT, HEUN, RK4, RK4_38, REVERSIBLE_HEUN, ALF_METHOD)}
"""Methods by name; `register` adds to it."""


def register(method: Method) -> None:
    """Make `method` known by its name.

    Raises:
        ConfigError: another method has that name.
    """
    if METHODS.setdefault(method.name, method) is not method:
        raise ConfigError(f"a method named {method.name!r} exists already; choose another name")


def find(method: str | Method) -> Method:
    """The method of a name; a method is returned as it is.

    Raises:
        ConfigError: no method has that name.
    """
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ConfigError(f"there is no fixed-step method {method!r}; known are {', '.join(sorted(METHODS))}")
    return METHODS[method]
