"""How far two correct answers may lie apart: one table for every test of every package, third parties' included.

Two kinds of quantity are told apart: `states` are outputs of a solve, `gradients` have gone through its adjoint as well, where errors of
both directions add up. The figures leave room for a different order of summation over some thousand steps, and for nothing else: a
test that needs more has found something. Comparisons are `|actual - expected| <= atol + rtol * |expected|`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, TypedDict, get_args

import torch

from pararnn.errors import ConfigError, DTypeError

Kind: TypeAlias = Literal["states", "gradients"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Tolerance(TypedDict):
    """Keyword arguments of `torch.testing.assert_close`."""

    rtol: float
    atol: float


TOLERANCES: Mapping[torch.dtype, Mapping[Kind, Tolerance]] = MappingProxyType(
    {
        torch.float64: {"states": {"rtol": 1e-10, "atol": 1e-10}, "gradients": {"rtol": 1e-9, "atol": 1e-9}},
        torch.float32: {"states": {"rtol": 1e-5, "atol": 1e-5}, "gradients": {"rtol": 1e-4, "atol": 1e-5}},
        torch.float16: {"states": {"rtol": 2e-3, "atol": 2e-3}, "gradients": {"rtol": 5e-3, "atol": 5e-3}},
        torch.bfloat16: {"states": {"rtol": 1e-2, "atol": 1e-2}, "gradients": {"rtol": 2e-2, "atol": 2e-2}},
    }
)


def tolerance(dtype: torch.dtype, kind: Kind) -> Tolerance:
    """The row of the table for `dtype`; a complex dtype has that of its real and imaginary parts.

    Raises:
        DTypeError: the table has no row for `dtype`.
        ConfigError: `kind` is none of `KINDS`.
    """
    row = TOLERANCES.get(dtype.to_real())
    if row is None:
        known = ", ".join(str(known) for known in TOLERANCES)
        raise DTypeError(f"there is no tolerance for {dtype}; states and gradients are compared in {known}", dtype=dtype)
    if kind not in row:
        raise ConfigError(f"there is no tolerance for {kind!r}; ask for one of {', '.join(KINDS)}", kind=kind)
    return row[kind].copy()
