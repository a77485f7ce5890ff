"""One step of a `ParaCfC` on a GPU, in place, for decoding: a matrix product and a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from pararnn.compiler.engines import engine_named
from pararnn.compiler.gpu import forward
from pararnn.distributions import CORE
from pararnn_cfc.fused_direct import addresses_of, remember
from pararnn_cfc.fused_program import program, rounded
from pararnn_cfc.fused_sources import Sources, constants_of, features_of, fit, projections_of, weights_of

if TYPE_CHECKING:
    from pararnn_cfc.parallel import ParaCfC

# Kernels by the program, which is told by its address, and the layout of what they read.
_steps: dict[tuple[Any, ...], forward.Prepared] = {}


def step(cell: ParaCfC, x: Tensor, state: Tensor) -> bool:
    """Overwrite `state` `(batch, d_h)` with the next one, from samples `x` `(batch, 1, d_in)`; whether these fit, and it was done.

    A time gap that is NaN or negative makes states NaN.
    """
    weight, bias, u = weights_of(cell)
    limit = cell.max_recurrent_norm
    sources = Sources(x, weight, bias, u, state)
    if not fit(cell, sources, x.shape[0], state.dtype, packed=False):
        return False
    bound = None if limit is None else rounded(limit, u.dtype)
    steps = program(state.dtype, bound, guarded=True, biased=bias is not None)
    wx = functional.linear(features_of(x), weight)
    operands = addresses_of(sources, wx)
    key = (steps, x.shape, x.dtype, state.shape, state.stride(), x.device)
    work = None if operands is None else _steps.get(key)
    if work is not None and operands is not None:
        forward.run_step(work, (state.data_ptr(), *operands), state)
        return True
    rate, candidate, elapsed = projections_of(x, wx)
    given = (rate[:, 0], candidate[:, 0], elapsed[:, 0], *constants_of(sources))
    engine_named(f"{CORE}:triton").step(steps, state, given, state)
    if operands is not None and state.is_contiguous():
        work = forward.arrange_step(steps, state, given, state)[0]
        if work.is_ready and not work.copies:
            remember(_steps, key, work)
    return True
