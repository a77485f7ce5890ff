"""The blocks that the digits study compares: one equation, with weights that move with time in many ways or in none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from pararnn_nanode import (
    NANODE,
    AppendTimeField,
    BucketPath,
    ConstantPath,
    CosinePath,
    DenseField,
    HyperPath,
    OrthogonalPath,
    PolyPath,
    ResidualStack,
    TrigPath,
    WeightPath,
)

Span = tuple[float, float]
PathOf = Callable[[tuple[int, ...], Span], WeightPath]


@dataclass(frozen=True, kw_only=True)
class Block:
    """What every block of a study shares: channels of the state, Euler steps, and the times between which they lie."""

    dim: int = 12
    steps: int = 10
    span: Span = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Model:
    """One line of the table.

    Attributes:
        name: as the table has it; `family`: what a plot joins by a line.
        matrices: how many `(dim, dim)` matrices it learns, None where that is not what it learns.
        build: the block; None where the features go straight to the classifier.
    """

    name: str
    family: str
    matrices: int | None
    build: Callable[[Block], nn.Module] | None


def moving(name: str, family: str, matrices: int | None, path: PathOf, bias: PathOf | None = None) -> Model:
    """A block whose weights follow `path`, and whose bias follows `bias`, by default the same kind of path."""

    def build(block: Block) -> nn.Module:
        dim, span = block.dim, block.span
        field = DenseField(dim, path((dim, dim), span), bias=(bias or path)((dim,), span))
        return NANODE(field, steps=block.steps, span=span)

    return Model(name=name, family=family, matrices=matrices, build=build)


def constant(shape: tuple[int, ...], span: Span) -> WeightPath:
    return ConstantPath(shape, span=span)


def bucket(buckets: int) -> Model:
    return moving(f"Bucket {buckets}", "bucket", buckets, lambda shape, span: BucketPath(shape, buckets, span=span))


def trig(order: int, omega: float | None = None) -> Model:
    name, family = (f"Trig {order}", "trig") if omega is None else (f"Trig {order}, omega = {omega:g}", f"trig, omega = {omega:g}")
    return moving(name, family, 2 * order + 1, lambda shape, span: TrigPath(shape, order, omega="period" if omega is None else omega, span=span))


def cosine(order: int) -> Model:
    return moving(f"Cosine {order}", "cosine", order + 1, lambda shape, span: CosinePath(shape, order, span=span))


def polynomial(degree: int, basis: str) -> Model:
    return moving(f"{basis.capitalize()} {degree}", basis, degree + 1, lambda shape, span: PolyPath(shape, degree, basis=basis, span=span))


def hyper(hidden: int) -> Model:
    """Weights that a small network of the time gives."""
    return moving(f"HyperPath {hidden}", "hyper", None, lambda shape, span: HyperPath(shape, hidden, span=span))


def householder(degree: int) -> Model:
    """Products of reflections, whose normals are the columns of a matrix that follows Legendre polynomials: orthogonal at all times."""

    def bias(shape: tuple[int, ...], span: Span) -> WeightPath:
        return PolyPath(shape, degree, basis="legendre", span=span)

    return moving(f"Householder {degree}", "householder", degree + 1, lambda shape, span: OrthogonalPath(bias(shape, span), map="householder"), bias)


def appended(block: Block) -> nn.Module:
    """AppNODE: weights that do not change, and the time as one more input; it starts as the Con-ResNet of its seed, with no weight on the time."""
    dim, span = block.dim, block.span
    weight = constant((dim, dim), span).at(0.0)
    path = ConstantPath((dim, dim + 1), span=span)
    with torch.no_grad():
        path.weight.copy_(torch.cat((weight, torch.zeros(dim, 1)), dim=1))
    return NANODE(AppendTimeField(dim, path, bias=constant((dim,), span)), steps=block.steps, span=span)


def residual(block: Block) -> nn.Module:
    """Uncon-ResNet: every layer with weights of its own."""
    return ResidualStack(block.dim, block.steps, span=block.span)


CON = moving("Con-ResNet", "bucket", 1, constant)
MODELS = (
    Model(name="linear head", family="linear", matrices=0, build=None),
    CON,
    Model(name="AppNODE", family="appended time", matrices=1, build=appended),
    *map(bucket, (2, 3, 5)),
    Model(name="Uncon-ResNet", family="bucket", matrices=10, build=residual),
    *map(trig, (1, 2, 4)),
    trig(1, omega=1.0),
    trig(2, omega=1.0),
    *map(cosine, (2, 4)),
    *(polynomial(degree, basis) for basis in ("monomial", "legendre") for degree in (2, 4)),
    polynomial(4, "chebyshev"),
    householder(0),
    householder(4),
    hyper(8),
)
BY_NAME = {model.name: model for model in MODELS}
