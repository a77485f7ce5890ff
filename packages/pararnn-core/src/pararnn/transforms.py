"""What code must know of `torch.func` transforms that run around it."""

from __future__ import annotations

from torch._C._functorch import TransformType, get_interpreter_stack, peek_interpreter_stack
from torch.autograd import forward_ad

from pararnn.errors import DifferentiationError


def inside_transform() -> bool:
    """Whether a transform (vmap, grad, jvp, forward-mode AD) is active, so that tensors may stand for more than their numbers."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def refuse_nested_jvp() -> None:
    """Raise `DifferentiationError` inside a forward-mode rule that runs under two nested forward-mode transforms.

    Torch runs such a rule of a `torch.autograd.Function` with the outer level switched off, so that the second derivative comes out without the
    rule's part, silently (seen with torch 2.13). Reverse over forward and forward over reverse are not affected.
    """
    levels = get_interpreter_stack() or ()
    if sum(level.key() == TransformType.Jvp for level in levels) > 1:
        raise DifferentiationError(
            "forward-mode derivatives of forward-mode derivatives would be wrong here, because torch drops the outer one inside custom functions; "
            "use torch.func.hessian (forward over reverse) or torch.func.jacrev of torch.func.jacfwd"
        )
