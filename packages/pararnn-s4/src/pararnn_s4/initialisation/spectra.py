"""The spectra that diagonal state matrices start with, and the input vectors that go with them.

Everything is double precision on the CPU; random numbers are drawn in the dtype that was asked for.
"""
# ruff: noqa: N803, N806 -- A, B, N are the names of the literature and of the reference functions.

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.hippo.nplr import nplr
from pararnn_s4.placement import draw

# Every name, and the spectrum it stands for.
INITS = {
    "lin": "lin",
    "linear": "lin",
    "inv": "inv",
    "inverse": "inv",
    "inv2": "inv2",
    "inverse2": "inv2",
    "quad": "quad",
    "quadratic": "quad",
    "rand": "rand",
    "random": "rand",
    "real": "real",
    "legs": "legs",
    "hippo": "legs",
    "fourier": "fourier",
    "fout": "fourier",
}
# The spectra that come from a HiPPO matrix, which then gives B and P too.
MEASURES = ("legs", "fourier")
B_INITS = ("constant", "random", "alternating", "unit-cw", "unit-ccw", "legs", "hippo")


def real_part(
    spectrum: str, shape: tuple[int, int], *, random: bool, dtype: torch.dtype, generator: torch.Generator | None
) -> Float[Tensor, "copies half"]:
    """Decay rates -Re A, before scaling."""
    copies, half = shape
    if random:
        return draw("uniform", shape, dtype, generator) * (half if spectrum == "real" else 1)
    if spectrum == "real":
        return _order(half).add(1).expand(copies, half)
    return torch.full(shape, 0.5, dtype=torch.float64, device="cpu")


def imaginary_part(
    spectrum: str, shape: tuple[int, int], *, random: bool, dtype: torch.dtype, generator: torch.Generator | None
) -> Float[Tensor, "copies half"]:
    """Frequencies -Im A, before scaling; none is negative."""
    copies, half = shape
    if spectrum == "real":
        return torch.zeros(shape, dtype=torch.float64, device="cpu")
    if spectrum == "rand":
        return draw("normal", shape, dtype, generator).exp()
    if spectrum in MEASURES:
        return -nplr(spectrum, 2 * half, dtype=torch.float64, device="cpu")[0].imag.expand(copies, half)
    n = half * draw("uniform", shape, dtype, generator) if random else _order(half).expand(copies, half)
    N = 2 * half
    if spectrum == "lin":
        return math.pi * n
    if spectrum == "quad":
        return (1 + 2 * n) ** 2 / math.pi
    # A random n just below N/2 gives a small negative number under "inv": the same pair, named by its other half.
    return (N / math.pi * (N / (1 + (2 * n if spectrum == "inv" else n)) - 1)).abs()


def input_vector(B_init: str, shape: tuple[int, int], *, dtype: torch.dtype, generator: torch.Generator | None) -> Complex[Tensor, "copies half"]:
    """B of the kinds that need no matrix, before scaling."""
    copies, half = shape
    n = _order(half)
    if B_init == "random":
        return draw("normal", shape, dtype.to_complex(), generator)
    if B_init == "alternating":
        B = 1 - 2 * (n % 2)
    elif B_init in ("unit-cw", "unit-ccw"):
        # N = 2 half, so the angle 2 pi n / N is pi n / half.
        angle = math.pi / half * n
        B = torch.polar(torch.ones_like(n), angle if B_init == "unit-ccw" else -angle)
    else:
        B = torch.ones_like(n)
    return B.to(torch.complex128).expand(copies, half)


def matched(rows: Complex[Tensor, "*lead half"], frequencies: Float[Tensor, "copies half"]) -> Complex[Tensor, "*lead copies half"]:
    """`rows`, given from the fastest to the slowest frequency, put in the order of `frequencies`."""
    rank = frequencies.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rows[..., rank]


def require_known(init: str, B_init: str) -> None:
    """Refuse names that nothing answers to.

    Raises:
        ConfigError: an unknown `init` or `B_init`.
    """
    if init not in INITS:
        raise ConfigError(f"init {init!r} is unknown; choose one of {', '.join(INITS)}")
    if B_init not in B_INITS:
        raise ConfigError(f"B_init {B_init!r} is unknown; choose one of {', '.join(B_INITS)}")


def _order(half: int) -> Tensor:
    return torch.arange(half, dtype=torch.float64, device="cpu")
