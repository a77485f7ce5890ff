"""The hooks of pararnn: the manual for plugin authors.

A plugin is a distribution with an entry point in the group `pararnn` whose module implements any of the hooks below:

    [project.entry-points."pararnn"]
    my-cells = "my_package.plugin"

The module imports `pararnn.hookspecs.hookimpl` and the records of `pararnn.specs`, and nothing heavy: it is imported whenever
somebody lists what is installed.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from pararnn.specs import BackendSpec, CellSpec, CommandSpec, LearnerSpec, OpSpec, StructureSpec

ENTRY_POINT_GROUP = "pararnn"
hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)


@hookspec
def pararnn_register_cells() -> Iterable[CellSpec]:
    """Offer cells. Each is reachable as `from pararnn import Name` and listed by `pararnn.cells`."""
    return ()


@hookspec
def pararnn_register_structures() -> Iterable[StructureSpec]:
    """Offer Jacobian structures. Scan, solver and adjoint work with any class that keeps the laws of `Structure`."""
    return ()


@hookspec
def pararnn_register_ops() -> Iterable[OpSpec]:
    """Offer operations that backends, of this plugin or of another, can serve."""
    return ()


@hookspec
def pararnn_register_backends() -> Iterable[BackendSpec]:
    """Offer implementations of operations, each with the reasons why it cannot serve a request."""
    return ()


@hookspec
def pararnn_register_learners() -> Iterable[LearnerSpec]:
    """Offer learning rules that work without backpropagation through time."""
    return ()


@hookspec
def pararnn_register_commands() -> Iterable[CommandSpec]:
    """Offer subcommands of the `pararnn` command line."""
    return ()
