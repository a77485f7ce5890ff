"""The side of `cpu_s4.py` that is measured: the S4 products by every backend that runs on a CPU, and KeOps as the public S4 codes use it.

Started by the driver; speaks the JSON of `worker.py`. A case is copies, length, and state (half of it: one of each conjugate pair).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from machine import environment
from torch import Tensor
from worker import BOTH, FORWARD, Call, Case, serve

BACKENDS = {"vandermonde": ("naive", "blocked", "compiled", "keops"), "cauchy": ("naive", "blocked", "numba", "compiled", "keops")}
REFERENCE = "keops as in lrnnx"
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class Products:
    """Vandermonde product of a length, Cauchy product at the nodes of half of it."""

    def facts(self) -> dict[str, Any]:
        """Versions."""
        return environment("pararnn-core", "pararnn-s4", "numba", "pykeops")

    def load(self, case: Case) -> dict[str, Call]:
        """Forward without gradients, and forward+backward to numerators and poles, of each product by each backend that can serve."""
        v, poles, nodes = problem(case)
        calls: dict[str, Call] = {}
        for name, product in contestants(case).items():
            argument = nodes if name.startswith("cauchy") else poles
            calls |= _calls(name, product, v, argument, poles)
        return calls

    def agreement(self, case: Case) -> dict[str, Any]:
        """The largest error of each in float32 against the definition in float64, as a part of the largest value."""
        v, poles, nodes = problem(case)
        found = {}
        with torch.no_grad():
            wide = [tensor.to(torch.complex128) for tensor in (v, nodes, poles)]
            exact = {op: contestants(case)[f"{op}/naive"](*wide) for op in BACKENDS}
            for name, product in contestants(case).items():
                truth = exact[name.partition("/")[0]]
                found[name] = float((product(v, nodes, poles) - truth).abs().max() / truth.abs().max())
        return found


def problem(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Random numerators, the poles of S4D-Lin with steps from 0.001 to 0.1, and the nodes of S4 (without the one at infinity)."""
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(case.batch, case.state, dtype=torch.complex64, generator=generator)
    step = torch.exp(math.log(0.001) + math.log(100) * torch.rand(case.batch, 1, generator=generator))
    poles = step * torch.complex(torch.full((case.state,), -0.5), math.pi * torch.arange(case.state))
    count = case.length // 2 + 1
    nodes = 2j * torch.tan(math.pi * torch.arange(count, dtype=torch.float64) / (case.length + 1))
    return v, poles, nodes.to(torch.complex64)


def contestants(case: Case) -> dict[str, Product]:
    """Products `(v, nodes, poles)` by `operation/backend`."""
    from pararnn.errors import BackendError
    from pararnn_s4 import cauchy, vandermonde

    def by(op: str, backend: str) -> Product:
        if op == "cauchy":
            return lambda v, z, w: cauchy(v, z, w, backend=backend)
        return lambda v, z, w: vandermonde(v, w, case.length, backend=backend)

    found: dict[str, Product] = {}
    one = torch.ones(2, dtype=torch.complex64)
    for op, backends in BACKENDS.items():
        for backend in backends:
            try:
                by(op, backend)(one, 3 * one, -one)
            except BackendError:
                continue
            found[f"{op}/{backend}"] = by(op, backend)
        if f"{op}/keops" in found:
            found[f"{op}/{REFERENCE}"] = _reference(op, case)
    return found


def _reference(op: str, case: Case) -> Product:
    """KeOps with the formula over a common denominator (Cauchy) or with complex steps (Vandermonde), differentiated by KeOps itself."""
    from pykeops.torch import Genred

    pairs = torch.view_as_real
    if op == "cauchy":
        above = "z * ComplexReal(v) - Real2Complex(ComplexReal(v) * ComplexReal(w) + ComplexImag(v) * ComplexImag(w))"
        formula = f"ComplexDivide({above}, ComplexMult(z - w, z - Conj(w)))"
        sums = Genred(formula, ["v = Vj(2)", "z = Vi(2)", "w = Vj(2)"], reduction_op="Sum", axis=1)
        return lambda v, z, w: 2 * torch.view_as_complex(sums(pairs(v), pairs(z)[None], pairs(w), backend="CPU"))
    sums = Genred("ComplexMult(v, ComplexExp(ComplexMult(x, l)))", ["v = Vj(2)", "x = Vj(2)", "l = Vi(2)"], reduction_op="Sum", axis=1)
    steps = pairs(torch.arange(case.length).to(torch.complex64))[None]
    return lambda v, z, w: 2 * torch.view_as_complex(sums(pairs(v), pairs(w), steps.to(w.real.dtype), backend="CPU")).real


def _calls(name: str, product: Product, v: Tensor, nodes: Tensor, poles: Tensor) -> dict[str, Call]:
    leaves = v.clone().requires_grad_(), poles.clone().requires_grad_()
    cotangents: list[Tensor] = []

    def forward() -> None:
        with torch.no_grad():
            product(v, nodes, poles)

    def forward_backward() -> None:
        result = product(leaves[0], nodes, leaves[1])
        if not cotangents:
            cotangents.append(torch.randn(result.shape, dtype=result.dtype, generator=torch.Generator().manual_seed(2)))
        torch.autograd.grad(result, leaves, cotangents[0])

    return {f"{name}/{FORWARD}": forward, f"{name}/{BOTH}": forward_backward}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    serve(Products(), threads=parser.parse_args().threads)
