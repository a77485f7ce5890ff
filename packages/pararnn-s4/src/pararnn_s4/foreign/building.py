"""From what the tensors of a foreign layer say to an empty layer of ours that can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn_s4.layers.s4 import S4
from pararnn_s4.layers.s4d import S4D


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the shapes of the state-space parameters say.

    Attributes:
        d_model: features.
        pairs: complex numbers in the state of a feature, or real ones where `is_real`.
        outputs: outputs of the state space for each feature, over both directions and halves of a gated unit.
        n_ssm: distinct copies of A and B.
        rank: of the low-rank part; 0 for a diagonal model.
        dt_tie: whether the states of a feature share their time step.
        is_real: whether the model is real.
    """

    d_model: int
    pairs: int
    outputs: int
    n_ssm: int
    rank: int
    dt_tie: bool
    is_real: bool

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, prefix: str, owner: str) -> Sizes:
        """The sizes of a layer whose tensors `C`, `A_real`, `inv_dt` and perhaps `P` are called so after `prefix`.

        Raises:
            InputError: one of the first three is missing.
            ShapeError: the tensors have no such shapes.
        """
        names = [prefix + name for name in ("C", "A_real", "inv_dt")]
        missing = [name for name in names if name not in tensors]
        if missing:
            raise InputError(f"the state_dict of {owner} lacks {', '.join(missing)}", missing=missing)
        output, rate, step = (tensors[name] for name in names)
        real = prefix + "A_imag" not in tensors
        if output.ndim != (3 if real else 4) or rate.ndim != 2 or step.ndim != 2:
            shapes = f"C {tuple(output.shape)}, A_real {tuple(rate.shape)}, inv_dt {tuple(step.shape)}"
            hint = "C is (channels, d_model, states)" if real else "C is (channels, d_model, d_state / 2, 2)"
            raise ShapeError(f"these are no parameters of {owner}: {shapes}; {hint}, A_real (n_ssm, states) and inv_dt (d_model, 1 or states)")
        low_rank = tensors.get(prefix + "P")
        return cls(
            d_model=output.shape[1],
            pairs=output.shape[2],
            outputs=output.shape[0],
            n_ssm=rate.shape[0],
            rank=0 if low_rank is None else low_rank.shape[0],
            dt_tie=step.shape[1] == 1,
            is_real=real,
        )


def empty_layer(sizes: Sizes, options: Mapping[str, Any], *, like: Tensor, disc: str) -> S4 | S4D:
    """A layer of `sizes` with `options`, diagonal (sampled by `disc`) or not, on the device and in the dtype of `like`.

    Raises:
        ConfigError: an option that cannot work.
    """
    if not sizes.rank:
        return empty_diagonal_layer(sizes, options, like=like, disc=disc)
    with _random_numbers_kept(like.device):
        return S4(sizes.d_model, rank=sizes.rank, init=f"dplr-{_kind(sizes)}", **_options(sizes, options, like))


def empty_diagonal_layer(sizes: Sizes, options: Mapping[str, Any], *, like: Tensor, disc: str) -> S4D:
    """A diagonal layer of `sizes` with `options`, on the device and in the dtype of `like`.

    Raises:
        ConfigError: an option that cannot work.
    """
    if disc not in ("zoh", "bilinear"):
        raise ConfigError(f"disc={disc!r} is not offered here, only 'zoh' and 'bilinear'" + (_DSS if disc == "dss" else ""), disc=disc)
    every = {"disc": disc, **_options(sizes, options, like)}
    with _random_numbers_kept(like.device):
        return S4D(sizes.d_model, init=f"diag-{_kind(sizes)}", **every)


def _random_numbers_kept(device: torch.device) -> AbstractContextManager[None]:
    # What is drawn for a new layer is overwritten, so it takes nothing from the caller's random numbers.
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _kind(sizes: Sizes) -> str:
    return "real" if sizes.is_real else "lin"


def _options(sizes: Sizes, options: Mapping[str, Any], like: Tensor) -> dict[str, Any]:
    return {
        "d_state": sizes.pairs if sizes.is_real else 2 * sizes.pairs,
        "n_ssm": sizes.n_ssm,
        "dt_tie": sizes.dt_tie,
        "is_real": sizes.is_real,
        "device": like.device,
        "dtype": like.dtype,
        **options,
    }


_DSS = ": the kernel of 'dss' depends on the length that it is asked for, so that it is no state space; train anew with disc='zoh'"
