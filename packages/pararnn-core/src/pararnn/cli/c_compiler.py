"""Which C compiler makes kernels for the CPU, and by what it was found, for `pararnn doctor`."""

from __future__ import annotations

import os
import shlex
import shutil

VARIABLES = ("CC", "CXX")


def compiler_found() -> tuple[bool, str]:
    """Whether steps can be compiled here, and by which compiler, found where and by what; or why not."""
    try:
        from pararnn.compiler.native import toolchain
    except (ImportError, OSError) as error:
        return False, f"unknown: torch cannot be imported ({error})"
    found = toolchain.compiler()
    if found is None:
        return False, f"none: {'; '.join(toolchain.reasons())}"
    version = (found.version.strip().splitlines() or ["a compiler that does not say its version"])[0]
    return True, f"{shutil.which(found.command[0]) or found.command[0]}, {_by_what(found.command)}: {version}"


def _by_what(command: tuple[str, ...]) -> str:
    """What led to `command`: a variable, or the search on PATH."""
    named = {variable: os.environ[variable] for variable in VARIABLES if os.environ.get(variable)}
    for variable, value in named.items():
        if _words(value) == command:
            return f"named by {variable}"
    unset = f"{' and '.join(VARIABLES)} are not set" if not named else ", ".join(f"{name}={value} does not work" for name, value in named.items())
    return f"found on PATH as {command[0]}, since {unset}"


def _words(value: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError:
        return ()
