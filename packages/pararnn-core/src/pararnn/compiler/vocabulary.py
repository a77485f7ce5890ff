"""Names of PyTorch's operations by what they do to the number that a tensor stands for."""

from __future__ import annotations

import math
from typing import Any

import torch

from pararnn.compiler.activations import LOWERINGS

RESHAPES = {"view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze"}
MOVES = {"alias", "detach", "clone", "contiguous", "t", "transpose", "permute", "lift_fresh", "lift_fresh_copy", "expand", "_to_copy"}
PARTS = {"select", "slice", "narrow", "split", "split_with_sizes", "unbind", "as_strided", "diagonal"}
# Parts put side by side; a part laid into zeros, as the gradients of cuts are, or into another tensor.
JOINS = {"cat", "stack"}
PUTS = {"slice_backward", "select_backward", "slice_scatter", "select_scatter"}
FILLED = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0, "zero": 0.0, "_efficientzerotensor": 0.0}
FILLED |= dict.fromkeys(("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"), math.nan)
FILLED_WITH = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill": 1, "copy": 1}
KNOWN = {*LOWERINGS, *RESHAPES, *MOVES, *PARTS, *JOINS, *PUTS, *FILLED, *FILLED_WITH, "sum", "mean", "convert_element_type"}
READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "_assert_async", "masked_select"}
_MIXING = """
mean prod amax amin max min logsumexp norm var var_mean std flip roll cumsum cumprod cummax cummin logcumsumexp _softmax _log_softmax sort topk argmax
argmin mm bmm addmm baddbmm mv addmv dot convolution gather scatter index index_select index_put any all median repeat linalg_vector_norm
native_layer_norm native_group_norm native_batch_norm glu
"""
MIXES = set(_MIXING.split())


def is_random(func: Any) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags
