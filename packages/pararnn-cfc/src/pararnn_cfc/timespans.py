"""Time spans as `CfC` and its cells take them: checked, and brought to one form whatever the caller passed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pararnn.errors import DTypeError, InputError, ShapeError


def split_elapsed(x: Float[Tensor, "*lead input"], *, input_size: int, state_size: int) -> tuple[Tensor, Tensor]:
    """Features and elapsed time of `x`, whose last channel (or last `state_size` channels, one for each unit) is elapsed time.

    Raises:
        ShapeError: `x` has another width.
    """
    width = x.shape[-1] - input_size
    if width not in (1, state_size):
        raise ShapeError(
            f"the cell takes {input_size} features and elapsed time in one more channel (or in {state_size}, one for each unit), "
            f"but the input ends in {x.shape[-1]}; concatenate features and elapsed time along the last dimension",
            expected=input_size + 1,
            got=x.shape[-1],
        )
    return x[..., :input_size], x[..., input_size:]


def elapsed_channel(
    timespans: Tensor | float | None,
    features: Float[Tensor, "batch time input"],
    *,
    state_size: int,
    batched: bool,
    batch_first: bool,
) -> Float[Tensor, "batch time elapsed"]:
    """Elapsed time for `features`, one channel wide or one for each of `state_size` units; `None` means one second a sample.

    A number holds for every sample; `(time,)` for every sequence. Batched tensors are `(batch, time)` or `(batch, time, width)`, time first
    unless `batch_first`; a batch of one is shared by all sequences. Unbatched tensors may be `(time, width)`. Any real dtype is converted.

    Raises:
        DTypeError: complex or boolean values, or no tensor and no number.
        InputError: a value is negative or not finite.
        ShapeError: none of the forms above.
    """
    batch, length = features.shape[:2]
    if timespans is None:
        return features.new_ones(batch, length, 1)
    if not isinstance(timespans, Tensor):
        if isinstance(timespans, bool) or not isinstance(timespans, int | float):
            raise DTypeError(f"timespans must be a tensor or a number of seconds, got {type(timespans).__name__}")
        timespans = features.new_tensor(timespans)
    if timespans.is_complex() or timespans.dtype == torch.bool:
        raise DTypeError(f"timespans must be real numbers, got {timespans.dtype}", dtype=timespans.dtype)
    timespans = checked_timespans(timespans, features.dtype)
    if timespans.dim() == 0:
        return timespans.expand(batch, length, 1)
    ordered = _batch_time_width(timespans, batched=batched, batch_first=batch_first)
    fits = ordered is not None and ordered.shape[0] in (1, batch) and ordered.shape[1] == length and ordered.shape[2] in (1, state_size)
    if ordered is None or not fits:
        leading = ("batch, time" if batch_first else "time, batch") if batched else "time"
        forms = f"a number, (time,), ({leading}) or ({leading}, 1)" if batched else "a number, (time,) or (time, 1)"
        raise ShapeError(
            f"timespans of shape {tuple(timespans.shape)} do not fit {batch} sequence(s) of {length} samples; pass {forms}",
            shape=tuple(timespans.shape),
        )
    return ordered.expand(batch, length, ordered.shape[2])


def checked_timespans(timespans: Tensor, dtype: torch.dtype) -> Tensor:
    """`timespans` in `dtype`, all of them lengths of time.

    ncps lets negative values pass; the pure mode then grows without bound. The check reads one number back from the device. Where there is none to
    read, while a graph is compiled or captured, what is no length of time becomes NaN, and so do the states from there on.

    Raises:
        InputError: a value is negative or not finite.
    """
    spans, values = timespans.to(dtype), timespans.detach()
    if timespans.is_meta:
        return spans
    good = (values >= 0) & (values < float("inf"))
    if torch.compiler.is_compiling() or (timespans.is_cuda and torch.cuda.is_current_stream_capturing()):
        return torch.where(good, spans, torch.nan)
    bad = ~good
    if not bad.any():
        return spans
    where = tuple(bad.nonzero()[0].tolist())
    raise InputError(
        f"timespans hold {int(bad.sum())} of {bad.numel()} values that are negative or not finite, "
        f"the first {values[where].item()} at index {where}; "
        "sort the samples by time, and where gaps are standardised scale them without subtracting the mean",
        count=int(bad.sum()),
        index=where,
    )


def _batch_time_width(timespans: Tensor, *, batched: bool, batch_first: bool) -> Tensor | None:
    if timespans.dim() == 1:
        return timespans[None, :, None]
    if not batched:
        return timespans[None] if timespans.dim() == 2 else None
    if timespans.dim() not in (2, 3):
        return None
    ordered = timespans if batch_first else timespans.transpose(0, 1)
    return ordered if ordered.dim() == 3 else ordered.unsqueeze(-1)
