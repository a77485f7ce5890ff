"""The text of the forward kernels of a program, and the module that it becomes."""

from __future__ import annotations

import functools
import hashlib
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Literal

from pararnn.compiler import cache
from pararnn.compiler.gpu.across import BOUNDARY, sweep_kernels
from pararnn.compiler.gpu.forward_subject import Forward
from pararnn.compiler.gpu.functions import SOURCE
from pararnn.compiler.gpu.launches import Variant
from pararnn.compiler.gpu.newton import SOURCE as NEWTON
from pararnn.compiler.gpu.shooting import shoot_kernel
from pararnn.compiler.gpu.walk import step_kernel, walk_kernel
from pararnn.compiler.program import Program

# Rows that a program reads ahead where it repairs what `across` left.
REPAIR_AHEAD = 1


def source(program: Program, variant: Variant | Literal["step"], ahead: int, *, keeps: bool, checked: int = 0) -> str:
    """The kernels that a solve by `variant` needs; `keeps` where the states have the precision of the carry; `checked` as in `sweep_kernels`."""
    subject = Forward(program, keeps and variant != "walk")
    parts = [subject.text]
    if variant == "step":
        parts.append(step_kernel(subject))
    elif variant == "walk":
        parts.append(walk_kernel(subject, ahead))
    elif variant == "shoot":
        parts += [NEWTON, shoot_kernel(subject, ahead)]
    else:
        parts += [NEWTON, *sweep_kernels(subject, ahead, checked), shoot_kernel(subject, REPAIR_AHEAD)]
    return '"""A step and the loops around it, printed by pararnn."""\n' + "\n\n".join(parts)


@functools.cache
def boundary() -> ModuleType:
    """The kernel that corrects entries between the launches of `across`, the same for all programs."""
    return module("\n\n".join(('"""Corrects the entries of intervals."""', SOURCE, NEWTON, BOUNDARY)))


def module(text: str) -> ModuleType:
    """The module of a source, which is kept in the cache folder because Triton reads it there."""
    name = f"forward_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = cache.keep(f"{name}.py", text)
    made = ModuleType(name)
    made.__file__ = str(path)
    SourceFileLoader(name, str(path)).exec_module(made)
    return made
