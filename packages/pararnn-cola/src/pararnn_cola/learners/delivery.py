"""From the gradients that autograd found to the buffers: none may be missing, none counts twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from pararnn_cola.errors import CoverageError
from pararnn_cola.learners.buffers import GradientBuffers
from pararnn_cola.network import Network


def covered(rule: str, names: Sequence[str], gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """`gradients`, all of which exist.

    Raises:
        CoverageError: no loss depends on some of the parameters called `names`.
    """
    missing = [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]
    if missing:
        raise CoverageError(
            f"{rule} found no path from {', '.join(missing)} to the loss, so {'it' if len(missing) == 1 else 'they'} would never learn; call "
            "requires_grad_(False) on what is meant to stay, and look for a detach() or an unused module otherwise",
            missing=missing,
        )
    return [gradient for gradient in gradients if gradient is not None]


def add_gradients(buffers: GradientBuffers, gradients: Mapping[nn.Parameter, Tensor]) -> None:
    """Add `gradients` to the buffers of their parameters; one that several layers share has one gradient and one buffer."""
    left = dict(gradients)
    for slots, group in zip(buffers.slots, buffers.open(), strict=True):
        for slot in slots:
            if slot.parameter in left:
                group[slot.name].add_(left.pop(slot.parameter))
    if buffers.shadows:
        buffers.close()
    buffers.unlearned = True


def refuse_strays(rule: str, network: Network) -> None:
    """Raise `CoverageError` if a trainable parameter stands outside of layers and readout, where no step would use it."""
    known = {parameter for module in (*network.recurrent, network.readout) for parameter in module.parameters()}
    stray = [name for name, p in network.named_parameters() if p.requires_grad and p not in known]
    if stray:
        raise CoverageError(
            f"{', '.join(stray)} belong neither to a layer nor to the readout, so {rule} would never use them; move them into one, or freeze them",
            missing=stray,
        )
