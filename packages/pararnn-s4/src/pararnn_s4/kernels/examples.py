"""Small calls of the three products, for `pararnn verify`, and the request of the first one for `pararnn doctor`.

Few forms, because some backends compile for each: a typical one, then one that has no conjugate pairs, and one with sizes of 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pararnn.selection import Request
from pararnn_s4.kernels.arrange import real_of

Calls: TypeAlias = list[tuple[Request, tuple[Any, ...], dict[str, Any]]]


class Form(NamedTuple):
    """The sizes of a product, and whether there are conjugate pairs, or whether `u` is real where there are none."""

    groups: int
    copies: int
    state: int
    length: int
    conj: bool


FORMS = (Form(2, 3, 5, 33, True), Form(1, 2, 4, 7, False), Form(3, 1, 1, 1, True))


class _Numbers:
    """Random numbers for one form, the same in every precision and on every device."""

    def __init__(self, seed: int, form: Form, device: str, dtype: torch.dtype) -> None:
        self.form, self.device, self.dtype = form, device, dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Complex numbers of size 1."""
        return torch.randn(shape, generator=self._generator, dtype=torch.complex128).to(self.device, self.dtype)

    def poles(self) -> Tensor:
        """`(copies, state)`; they decay, and are no nearer than 0.2 to the imaginary axis."""
        normal = self.normal(self.form.copies, self.form.state)
        return torch.complex(-0.2 - normal.real.abs(), 2 * normal.imag)

    def request(self, op: str, *, conj: bool) -> Request:
        """What a caller asks where `auto` is to choose."""
        sizes = {name: getattr(self.form, name) for name in ("groups", "copies", "state", "length")}
        options = {"conj": conj, "transformed": False, "named": False}
        return Request.of(f"s4/{op}", device=self.device, dtype=self.dtype, options=options, **sizes)


def cauchy(seed: int, *, device: str, dtype: torch.dtype) -> Calls:
    """`naive.cauchy` at nodes on the imaginary axis, shared by all copies in the typical form and of each copy in the next."""
    calls: Calls = []
    for form in FORMS:
        numbers = _Numbers(seed, form, device, dtype)
        nodes = 1j * numbers.normal(1 if form.conj else form.copies, form.length).real
        args = (numbers.normal(form.groups, form.copies, form.state), nodes, numbers.poles())
        calls.append((numbers.request("cauchy", conj=form.conj), args, {"conj": form.conj}))
    return calls


def vandermonde(seed: int, *, device: str, dtype: torch.dtype) -> Calls:
    """`naive.vandermonde`."""
    calls: Calls = []
    for form in FORMS:
        numbers = _Numbers(seed, form, device, dtype)
        args = (numbers.normal(form.groups, form.copies, form.state), numbers.poles(), form.length)
        calls.append((numbers.request("vandermonde", conj=form.conj), args, {"conj": form.conj}))
    return calls


def vandermonde_transpose(seed: int, *, device: str, dtype: torch.dtype) -> Calls:
    """`naive.vandermonde_transpose` of real inputs, and of complex ones in the form without conjugate pairs."""
    calls: Calls = []
    for form in FORMS:
        numbers = _Numbers(seed, form, device, dtype)
        inputs = numbers.normal(form.groups, form.copies, form.length)
        drive = inputs.real.to(real_of(dtype)).contiguous() if form.conj else inputs
        calls.append((numbers.request("vandermonde_transpose", conj=False), (drive, numbers.poles()), {}))
    return calls
