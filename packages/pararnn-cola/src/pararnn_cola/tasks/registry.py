"""Tasks by their names."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from pararnn.errors import ConfigError, UnknownNameError
from pararnn_cola.tasks.base import Task

TASKS = {
    "adding": "adding:Adding",
    "characters": "characters:Characters",
    "digits": "digits:Digits",
    "lorenz": "lorenz:Lorenz",
    "row_cifar10": "rows:RowCIFAR10",
    "row_mnist": "rows:RowMNIST",
    "uci_har": "har:UCIHAR",
}
"""Where the task of each name lives, inside this package."""


def make(name: str, **options: Any) -> Task:
    """The task called `name`, built with `options`.

    Raises:
        UnknownNameError: there is none of that name.
        ConfigError: `name` is no str, the task has no such option, or an option has a value that cannot work.
    """
    if not isinstance(name, str):
        raise ConfigError(f"a task is named by a str, got {type(name).__name__}; there are {', '.join(TASKS)}", name=name)
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise UnknownNameError(f"there is no task {name!r}; {meant}there are {', '.join(TASKS)}", name=name)
    module, _, attribute = TASKS[name].partition(":")
    kind = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
    try:
        task: Task = kind(**options)
    except TypeError as error:
        raise ConfigError(f"the task {name!r} cannot be built with {options}: {error}", name=name) from error
    return task
