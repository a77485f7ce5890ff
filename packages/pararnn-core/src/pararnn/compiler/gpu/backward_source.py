"""The text of the backward kernels of a program, and the module that it becomes."""

from __future__ import annotations

import hashlib
from importlib.machinery import SourceFileLoader
from types import ModuleType

from pararnn.compiler import cache
from pararnn.compiler.gpu.backward_planning import Cut
from pararnn.compiler.gpu.backward_subject import Subject, functions
from pararnn.compiler.gpu.backward_tile import tile_kernel
from pararnn.compiler.gpu.backward_walk import How, Loop, compose_kernel, plain, walk_kernel
from pararnn.compiler.program import Program


def source(program: Program, needs: tuple[bool, ...], cut: Cut) -> str:
    """The kernels that `cut` names, for the gradients of the operands, and last of the initial state, that `needs` tells."""
    subject = Subject(program, needs[:-1])
    start = needs[-1]
    parts = [functions(subject), plain(Loop(subject, composes=False))]
    if cut.variant == "tile":
        parts.append(tile_kernel(subject, cut.ahead, start=start))
    else:
        how: How = "whole" if cut.variant == "walk" else "folded" if cut.folds else "bounded"
        parts.append(walk_kernel(subject, cut.ahead, warps=cut.warps, cut=how, start=start))
    if cut.variant == "across":
        parts += [plain(Loop(subject, composes=True)), compose_kernel(subject, cut.ahead, warps=cut.warps)]
    return '"""Gradients of a step, printed by pararnn."""\n' + "\n\n".join(parts)


def module(text: str) -> ModuleType:
    """The module of a source, which is kept in the cache folder because Triton reads it there."""
    name = f"backward_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    made = ModuleType(name)
    SourceFileLoader(name, str(cache.keep(f"{name}.py", text))).exec_module(made)
    return made
