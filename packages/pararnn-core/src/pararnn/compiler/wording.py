"""Operations as the reader of an obstacle wrote them: PyTorch's own names below `torch` are often other ones."""

from __future__ import annotations

from typing import Any

_MATRIX = dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"), "a matrix product")
_VIEW = dict.fromkeys(("view", "_unsafe_view", "_reshape_alias"), "view or reshape")
WORDS = {
    "slice": "a slice",
    "select": "an index",
    "split": "chunk or split",
    "split_with_sizes": "chunk or split",
    "index": "an index by a tensor",
    "index_put": "an assignment by index",
    "copy": "an assignment",
    "convolution": "a convolution",
    "constant_pad_nd": "pad",
    "linalg_vector_norm": "norm",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "_to_copy": "to",
    **_MATRIX,
    **_VIEW,
}


def called(func: Any) -> str:
    """An operation in its user's word, and by the name that PyTorch reports: `a slice (aten.slice.Tensor)`."""
    plain = func._schema.name.partition("::")[2]
    return f"{WORDS.get(plain) or WORDS.get(plain.removesuffix('_')) or plain.strip('_')} ({func})"


def tensor_called(operand: str) -> str:
    """An operand of a step that is traced, in words: `o1` is a leaf of the drive, `p0` a tensor that the step reads by name."""
    return {"o": "drive", "p": "parameter or buffer"}.get(operand[0], operand)
