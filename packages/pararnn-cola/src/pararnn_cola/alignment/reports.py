"""What an alignment measurement says, as numbers and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LayerAlignment:
    """The signals of one layer. Cosines are means over samples and all steps but the last, of vectors over units; None: nothing to compare."""

    signal: float | None
    """cosine of the rule's signal with the exact one; None for rules without signals"""
    instantaneous: float | None
    """the same for `d[t]`, TBPTT-1's signal"""
    closure: float | None
    """the same for `d / (1 - mu p)` with the best constant `mu` a unit, fitted to the exact signals"""
    sign: float | None
    """share of units in which `d` has the sign of the exact signal"""
    persistence: float | None
    """R^2 of each exact signal predicted from the step before it, with a coefficient a unit"""
    participation: float | None
    """how many directions the exact signals fill"""
    gain: float | None
    """median factor between the rule's signal and `d`"""
    at_cap: float | None
    """share of those factors at COLA's bound, 1/margin; None for other rules"""
    norm: float | None
    """norm of the rule's signals over that of the exact ones"""


@dataclass(frozen=True)
class GradientAlignment:
    """The gradient of one parameter beside the exact one."""

    cosine: float | None
    """None where the exact gradient is zero"""
    norm: float | None
    """the rule's norm over the exact one"""


@dataclass(frozen=True)
class AlignmentReport:
    """A rule beside backpropagation through time, at frozen weights."""

    rule: str
    layers: tuple[LayerAlignment, ...]
    gradients: dict[str, GradientAlignment]
    loss: float
    """the weighted losses, added over time, mean over the batch"""
    batch: int
    length: int

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.rule} beside BPTT, {self.batch} sequences of {self.length} steps, loss {self.loss:.4g}"
        names = list(LayerAlignment.__dataclass_fields__)
        rows = [["layer", *names]]
        rows += [[str(index), *(_shown(getattr(layer, name)) for name in names)] for index, layer in enumerate(self.layers)]
        gradients = [["gradient", "cosine", "norm"]]
        gradients += [[name, _shown(gradient.cosine), _shown(gradient.norm)] for name, gradient in self.gradients.items()]
        return "\n".join([head, *_table(rows), "", *_table(gradients)])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) >= 10 else f"{value:.3f}"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]) for row in rows]
