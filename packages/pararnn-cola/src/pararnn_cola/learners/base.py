"""The streaming interface that every rule shares.

    learner = COLA(network, lr=0.1)
    for u, y in stream:
        result = learner.step(u, y)     # one time step: answers, learns, forgets the graph

The gradient of what was seen stands in `.grad`, as after `backward()`, so any torch optimizer serves. It is the mean over the batch of the
gradients of weighted losses, added up over the steps since the last update.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Self

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError
from pararnn_cola.errors import CoverageError, NonFiniteLossError, StreamError
from pararnn_cola.layers.base import rows_like, select
from pararnn_cola.learners.admission import batch_of, check_batch, check_one_kind, check_stream, optimizer_of
from pararnn_cola.learners.buffers import GradientBuffers
from pararnn_cola.learners.checkpoint import Checkpointed
from pararnn_cola.learners.clipping import clip_gradients
from pararnn_cola.learners.options import check_numbers, refuse_unknown
from pararnn_cola.learners.result import StepResult
from pararnn_cola.learners.rows import Rows, all_finite, per_row, rows_of
from pararnn_cola.learners.surroundings import keeps_state, plain
from pararnn_cola.losses import Loss, SampleLoss, loss_of
from pararnn_cola.network import Network

Update = Literal["step", "accumulate"]


class Learner(Checkpointed):
    """A rule that trains `network` as data streams by.

    `loss` is "mse", "cross_entropy" or a function `(output, target) -> losses (batch,)`. `optimizer` is any torch optimizer over parameters of the
    network; without one it is SGD at the rate `lr`. `update="step"` moves the weights after every step that has a loss; with "accumulate" they wait
    for `apply()`, or for an optimizer of your own. `clip` bounds the global norm of the gradient at each update; None leaves it.

    Several learners may share a network: they share its `.grad` too; one that was there before any of them is dropped at the first loss. Copies and
    pickles of a learner go on bit for bit.

    The short way to a rule of one's own is `SignalLearner`: a subclass of it writes `_signal`, a stand-in for `dL/dx`, and no more. One of this class
    writes `_learn` (one step). Both write `_forget`, `_memory`, `_recall` (and `_check_memory`) for what they keep between steps, and `_options` for
    what a checkpoint has to agree in.

    Raises:
        CoverageError: the rule was not derived for a part of the network.
        ConfigError: there is no such option, an option cannot work, nothing can be trained, or the optimizer holds no parameter of the network.
        DTypeError: the parameters of the network differ in dtype or device.
    """

    def __init__(
        self,
        network: Network,
        *,
        loss: str | Loss | SampleLoss = "mse",
        optimizer: torch.optim.Optimizer | None = None,
        lr: float = 0.01,
        update: Update = "step",
        clip: float | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            refuse_unknown(type(self), unknown)
        if update not in ("step", "accumulate"):
            raise ConfigError(f'update={update!r} is neither "step" nor "accumulate"', update=update)
        check_numbers(lr, clip)
        self.network, self.loss, self.update, self.clip = network, loss_of(loss), update, clip
        self._check_coverage()
        self.optimizer = optimizer_of(network, optimizer, lr)
        self.states = None
        self.batch = ()
        self.steps = 0
        self.buffers = GradientBuffers(network)
        # A gradient of before is nobody's to apply, unless another learner of this network has gathered it.
        self.buffers.spent = self.buffers.spent or not self.buffers.unlearned
        # Looked up once: on a small network the bookkeeping of a step costs as much as its arithmetic.
        self._lead, self._input_dims = network.lead, network.recurrent[0].unit_dims

    def _check_coverage(self) -> None:
        """Raise `CoverageError` if a part of the network is outside what the rule was derived for."""
        if not isinstance(self.network, Network):
            kind = type(self.network).__name__
            wrapped = any(isinstance(module, Network) for module in getattr(self.network, "children", list)())
            remedy = "pass the network inside it" if wrapped else "build one from layers and a Readout"
            raise CoverageError(f"{type(self).__name__} learns a pararnn_cola.Network, got {kind}; {remedy}", type=kind)
        check_one_kind(self.network)

    @keeps_state
    def init(self, *batch: int) -> Self:
        """Start with zero states for samples of shape `batch`, usually one number; statistics and weights stay. `step` calls it where nobody did.

        An ensemble takes `init(runs, batch)`.
        """
        check_batch(batch, self._lead)
        self.flush()
        self.batch = batch
        self.states = self.network.zero_state(*batch)
        self._forget(None)
        return self

    @keeps_state
    def step(
        self,
        u: Tensor,
        y: Tensor | None = None,
        weight: Tensor | float | None = None,
        mask: Tensor | None = None,
        *,
        signals: bool = False,
    ) -> StepResult:
        """Answer one step's inputs `u` `(batch, *input)`, and learn from its targets `y`, if it has any.

        `weight` `(batch,)` or a number scales the loss; rows with weight 0 learn nothing. Rows where `mask` `(batch,)` is false have no step: their
        state stays, and what stands in `u`, `y` and `weight` for them is ignored. A tensor that leaves no row is still a step with a loss (of zero),
        after which an optimizer with momentum moves the weights; `y=None` or `weight=0` is not. `signals=True` returns the signals of rules that have
        them. No gradient flows to `u` or `y`.

        Raises:
            ShapeError, DTypeError, InputError: `u`, `y`, `weight` or `mask` do not fit; nothing has changed then.
            StreamError: the network moved to another dtype or device, or a parameter was replaced; nothing has changed then.
            ConfigError: `torch.autocast` is active; nothing has changed then.
            NonFiniteLossError: the loss of this step, or an input of it, is not finite (looked at on the CPU only, and not in ensembles); nothing has
                changed then.
        """
        self.buffers.check()
        batch = batch_of(u, self.buffers.flat[0].parameter, self._lead, self._input_dims)
        if self.states is not None:
            check_stream(batch, u, self.batch, self.states)
        rows = rows_of(batch, y, weight if not isinstance(weight, Tensor) else plain(weight), mask, u.device)
        u = plain(u)
        if rows.present is not None:
            u = torch.where(rows_like(rows.present, u, u.dim() - len(batch)), u, torch.zeros((), dtype=u.dtype, device=u.device))
        if y is not None:
            if not isinstance(y, Tensor):
                raise DTypeError(f"targets are a tensor with one entry a sample, or None for a step without, got {type(y).__name__}", type=type(y))
            y = None if rows.live is False else rows.blank(plain(y))
        begins = self.states is None
        if begins:
            self.init(*batch)
        try:
            result = self._learn(u, y, rows, signals)
        except Exception:
            if begins:
                self.states, self.batch = None, ()
            raise
        self.steps += 1
        if rows.live is not False:
            self._unlearned = True
        if self.update == "step" and self._due(rows):
            self.apply()
        return result

    @keeps_state
    def reset(self, rows: Tensor | None = None, *, statistics: bool = False) -> None:
        """Begin a new sequence: in every row, or in those where `rows` `(batch,)` is true.

        Gradients of what was seen are kept. `statistics=True` forgets also what a rule has learned of the network besides its weights.
        """
        if self.states is None:
            if rows is not None:
                raise StreamError("reset(rows) before the first step: there are no rows yet; call init(batch) or step first")
        else:
            chosen = None if rows is None else self._checked_rows(rows)
            zero = self.network.zero_state(*self.batch)
            if chosen is None:
                self.flush()
                self.states = zero
            else:
                self.states = tuple(
                    select(chosen, fresh, state, layer.unit_dims)
                    for fresh, state, layer in zip(zero, self.states, self.network.recurrent, strict=True)
                )
            self._forget(chosen)
        if statistics:
            self._forget_statistics()

    def _checked_rows(self, rows: Tensor) -> Tensor:
        if isinstance(rows, Tensor) and rows.dtype != torch.bool:
            raise DTypeError(f"rows is boolean, true where a sequence begins, got {rows.dtype}", dtype=rows.dtype)
        return per_row("rows", rows, self.batch, self.buffers.flat[0].parameter.device)

    def flush(self) -> None:
        """Bring gradients that a rule still owes (those of an open window) into `.grad`; rules without windows owe none."""

    @keeps_state
    def apply(self) -> None:
        """Move the weights by the gradients gathered since the last time; nothing happens where there are none."""
        self.flush()
        if not self._unlearned:
            return
        if self.clip is not None:
            clip_gradients(self.buffers, self.optimizer, self.clip, self._lead)
        self.optimizer.step()
        self.buffers.spent = True
        self._unlearned = False

    def _due(self, rows: Rows) -> bool:
        """Whether the weights move after this step, where `update` is "step": after each that has a loss, unless the rule waits for more."""
        return rows.live is not False

    def _finite(self, loss: Tensor, u: Tensor | None = None, output: Tensor | None = None) -> None:
        """Raise if the loss or an input is not finite, before anything changes; `output` where rows without a loss could hide what they are.

        On a GPU it would stop the stream at each step, so it is left to `train`; networks of an ensemble diverge one by one.
        """
        if loss.device.type != "cpu" or loss.dim():
            return
        number = loss.item()
        hidden = None if u is None or all_finite(u) else "an input"
        if output is not None and not all_finite(output):
            hidden = "an output"
        if hidden or not math.isfinite(number):
            fault = (
                f"{hidden} of step {self.steps} is not finite" if hidden and math.isfinite(number) else f"the loss of step {self.steps} is {number}"
            )
            raise NonFiniteLossError(
                f"{fault}; the rate is probably too high, or an input or a target is not finite (after a bad input, reset() drops the state that "
                "it led to). Nothing has changed",
                step=self.steps,
                loss=number,
            )

    @abstractmethod
    def _learn(self, u: Tensor, target: Tensor | None, rows: Rows, signals: bool) -> StepResult:
        """One step, whose target is None where no row has a loss: set `self.states`, and add to `self.buffers`."""

    def _forget(self, rows: Tensor | None) -> None:
        """A sequence begins in `rows` (None: in all): drop what must not reach across."""

    def _forget_statistics(self) -> None:
        """Drop what outlives sequences, other than the weights."""

    def _settings(self) -> Iterator[str]:
        """What `repr` tells besides the network."""
        yield f"loss={self.loss.name}"
        yield f"update={self.update!r}"
        yield f"optimizer={type(self.optimizer).__name__}"
        if self.clip is not None:
            yield f"clip={self.clip}"

    def __repr__(self) -> str:
        kinds = " + ".join(type(layer).__name__ for layer in self.network.recurrent)
        return f"{type(self).__name__}({kinds}, {', '.join(self._settings())})"
