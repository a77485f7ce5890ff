"""Rules that carry the influence of the weights forward in time, so that a loss has its whole gradient at the moment it is seen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pararnn_cola.errors import CoverageError
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.buffers import HALF
from pararnn_cola.learners.columns import columns_of, kept_columns
from pararnn_cola.learners.delivery import add_gradients, covered, refuse_strays
from pararnn_cola.learners.recorded import advance, blank_rows, detached, judge, sound_rows
from pararnn_cola.learners.result import StepResult
from pararnn_cola.learners.rows import Rows
from pararnn_cola.network import Network, States


class ForwardLearner(Learner):
    """The step that such rules share: carry the influence on, and let the loss read it.

    With states `s` of all layers side by side and the weights `theta` of all recurrent layers, the influence `ds/dtheta` follows

        G[t] = (ds[t]/ds[t-1]) G[t-1] + ds[t]/dtheta

    and the gradient of a loss is `(dL/ds) G`. Readout weights have their exact gradient within the step. Where weights move as the stream goes
    by, `G` mixes influences on old weights and new ones, as in all rules of this kind. Weights that are frozen leave `G`, and those that are
    unfrozen enter it without a past.
    """

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        # Whose influence is kept, by name: some may be frozen, or unfrozen, before the next step.
        self.columns: tuple[str, ...] = ()

    def _check_coverage(self) -> None:
        super()._check_coverage()
        refuse_strays(type(self).__name__, self.network)
        if lead := self.network.lead:
            raise CoverageError(
                f"{type(self).__name__} learns one network at a time, this is an ensemble of {lead[0]}; unstack() it, or take BPTT or TBPTT",
                lead=lead,
            )

    def _hidden(self) -> dict[str, nn.Parameter]:
        """The weights of the recurrent layers that are to be learned, by the names that the network gives them."""
        inside = {parameter for layer in self.network.recurrent for parameter in layer.parameters()}
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad and p in inside}

    def _learn(self, u: Tensor, target: Tensor | None, rows: Rows, signals: bool) -> StepResult:
        hidden = self._hidden()
        with torch.no_grad():
            top, following = advance(self.network, u, self.states or (), rows.present)
        # A row that has become NaN would take all others along: autograd sums the derivatives by weights over rows, and zero times NaN is NaN.
        sound = sound_rows(u, following, 1)
        before = tuple(tuple(blank_rows(part, sound) for part in state) for state in self.states or ())
        carried = self._carried(blank_rows(u, sound), before, hidden, rows.present)
        loss = None
        if target is None:
            with torch.no_grad():
                output = self.network.readout(top)
        else:
            with torch.enable_grad():
                top = top.detach().requires_grad_()
                output = self.network.readout(top)
            loss, error = judge(self.loss, output, target, rows)
            self._finite(loss, u, output if isinstance(rows.live, Tensor) else None)
            readout = {name: p for name, p in self.network.readout.named_parameters(prefix="readout") if p.requires_grad}
            reached = torch.autograd.grad(output, [top, *readout.values()], error, allow_unused=True)
            names = ["the output of the top layer", *readout]
            by_top, *by_readout = covered(type(self).__name__, names, reached)
            pieces = self._credit(self._into_states(by_top, following), carried).split([p.numel() for p in hidden.values()])
            gradients = dict(zip(readout.values(), by_readout, strict=True))
            for parameter, piece in zip(hidden.values(), pieces, strict=True):
                gradient = piece.view_as(parameter)
                gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
            add_gradients(self.buffers, gradients)
        self._carry(carried)
        self.columns = tuple(hidden)
        self.states = following
        return StepResult(output.detach(), loss)

    def _kept(self, influence: Tensor, hidden: dict[str, nn.Parameter]) -> Tensor:
        """The kept `influence` `(..., parameters)` as one of `hidden`."""
        return influence if self.columns == tuple(hidden) else kept_columns(self.network, influence, self.columns, tuple(hidden))

    def _into_states(self, by_top: Tensor, states: States) -> Tensor:
        """`dL/ds` `(batch, total)` from that by the top output, which is the first part of the last layer's state."""
        below = sum(tensor[0].numel() for state in states[:-1] for tensor in state)
        above = sum(tensor[0].numel() for tensor in states[-1][1:])
        wide = by_top.float() if by_top.dtype in HALF else by_top
        return nn.functional.pad(wide.flatten(1), (below, above))

    def _rerun(self, u: Tensor, states: States, present: Tensor | None, rows: slice) -> tuple[list[Tensor], Tensor]:
        """One step of some rows under autograd: the state tensors it starts from, as leaves, and the states it ends in, `(rows, total)`."""
        with torch.enable_grad():
            before = tuple(tuple(tensor.requires_grad_() for tensor in state) for state in detached(cut(states, rows)))
            _, following = advance(self.network, u[rows], before, None if present is None else present[rows])
            return [tensor for state in before for tensor in state], flat(following)

    @abstractmethod
    def _carried(self, u: Tensor, states: States, hidden: dict[str, nn.Parameter], present: Tensor | None) -> tuple[Tensor, ...]:
        """The influence after the step from `states` with `u`, in the form that the rule keeps it; `hidden` are the weights that it is of."""

    def _place(self, columns: Tensor | None) -> None:
        """Take over what a checkpoint tells of whose influence it holds."""
        self.columns = () if columns is None else columns_of(self.network, columns)

    @abstractmethod
    def _carry(self, carried: tuple[Tensor, ...]) -> None:
        """Keep what `_carried` gave for the next step."""

    @abstractmethod
    def _credit(self, by_states: Tensor, carried: tuple[Tensor, ...]) -> Tensor:
        """`(dL/ds) G`, summed over the batch, `(parameters,)`, from `dL/ds` `(batch, total)`."""


def cut(states: States, rows: slice) -> States:
    """Some rows of `states`."""
    return tuple(tuple(tensor[rows] for tensor in state) for state in states)


def flat(states: States) -> Tensor:
    """All states of all layers side by side, `(batch, total)`, in single precision at least."""
    return torch.cat([tensor.flatten(1).float() if tensor.dtype in HALF else tensor.flatten(1) for state in states for tensor in state], -1)


def side_by_side(pieces: Sequence[Tensor | None], like: Sequence[Tensor], lead: tuple[int, ...], kept: int, dtype: torch.dtype) -> Tensor:
    """`pieces`, one for each of `like` with `lead` in front, as one tensor `(*lead, ..., total)` with `kept` of their own dimensions left alone.

    A piece that is None is one of zeros: no path leads there.
    """
    made = []
    for piece, tensor in zip(pieces, like, strict=True):
        whole = tensor.new_zeros(*lead, *tensor.shape, dtype=dtype) if piece is None else piece.to(dtype)
        made.append(whole.reshape(*whole.shape[: len(lead) + kept], -1))
    return torch.cat(made, -1)
