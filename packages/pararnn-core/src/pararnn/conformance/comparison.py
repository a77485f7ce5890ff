"""Whether two tensors agree, in words when they do not."""

from __future__ import annotations

from torch import Tensor

from pararnn.conformance.tolerances import Kind, tolerance


def difference(actual: Tensor, expected: Tensor, kind: Kind = "states") -> str | None:
    """How the tensors differ, to follow the words "they differ"; None where they agree within the tolerances of their dtype.

    NaN agrees with nothing: a check that meets one has found something.
    """
    if actual.shape != expected.shape:
        return f"in shape, {tuple(actual.shape)} and {tuple(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"in dtype, {actual.dtype} and {expected.dtype}"
    if not (expected.is_floating_point() or expected.is_complex()):
        return None if bool((actual == expected).all()) else "in their whole numbers"
    actual, expected = actual.detach(), expected.detach()
    allowed = tolerance(expected.dtype, kind)
    error = (actual - expected).abs()
    agree = (actual == expected) | (error <= allowed["atol"] + allowed["rtol"] * expected.abs())
    if bool(agree.all()):
        return None
    at = int(error.nan_to_num(nan=float("inf")).masked_fill(agree, -1.0).argmax())
    return f"by up to {error.flatten()[at]:.1e} ({_number(actual.flatten()[at])} and {_number(expected.flatten()[at])} at {_index(at, expected)})"


def _number(value: Tensor) -> str:
    number = value.item()
    return f"{number:.4g}"


def _index(flat: int, like: Tensor) -> str:
    place = []
    for size in reversed(like.shape):
        flat, inside = divmod(flat, size)
        place.append(inside)
    return f"index {tuple(reversed(place))}"
