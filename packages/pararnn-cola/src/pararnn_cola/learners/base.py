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
from typing import Literal, Self

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_cola.errors import CoverageError, NonFiniteLossError, StreamError
from pararnn_cola.layers.base import select
from pararnn_cola.learners.buffers import GradientBuffers
from pararnn_cola.learners.checkpoint import Checkpointed
from pararnn_cola.learners.result import StepResult
from pararnn_cola.learners.rows import Rows, rows_of
from pararnn_cola.losses import Loss, SampleLoss, loss_of
from pararnn_cola.network import Network, States

Update = Literal["step", "accumulate"]


class Learner(Checkpointed):
    """A rule that trains `network` as data streams by.

    `loss` is "mse", "cross_entropy" or a function `(output, target) -> losses (batch,)`. `optimizer` is any torch optimizer over parameters of the
    network; without one it is SGD at the rate `lr`. `update="step"` moves the weights after every step that has a loss; with "accumulate" they wait
    for `apply()`, or for an optimizer of your own. `clip` bounds the global norm of the gradient at each update; None leaves it.

    A subclass writes `_learn` (one step), and `_forget`, `_memory`, `_recall` for what it keeps between steps.
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
    ) -> None:
        if update not in ("step", "accumulate"):
            raise ConfigError(f'update={update!r} is neither "step" nor "accumulate"', update=update)
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip={clip}; the bound of a gradient's norm is above zero, or None for no bound", clip=clip)
        self.network, self.loss, self.update, self.clip = network, loss_of(loss), update, clip
        self._check_coverage()
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError("every parameter of the network is frozen, so there is nothing to learn; call requires_grad_() on some")
        self.optimizer = torch.optim.SGD(trained, lr=lr) if optimizer is None else optimizer
        self.states: States | None = None
        self.batch: tuple[int, ...] = ()
        self.steps = 0
        self.buffers = GradientBuffers(network)
        self._unlearned = False

    def _check_coverage(self) -> None:
        """Raise `CoverageError` if a part of the network is outside what the rule was derived for."""
        if not isinstance(self.network, Network):
            kind = type(self.network).__name__
            raise CoverageError(f"{type(self).__name__} learns a pararnn_cola.Network, got {kind}; build one from layers and a Readout", type=kind)

    def init(self, *batch: int) -> Self:
        """Start with zero states for samples of shape `batch`, usually one number; statistics and weights stay. `step` calls it where nobody did."""
        if not batch or any(not isinstance(size, int) or size < 1 for size in batch):
            raise ConfigError(f"init{batch} is no batch; give the number of samples, at least 1", batch=batch)
        self.flush()
        self.batch = batch
        self.states = self.network.zero_state(*batch)
        self._forget(None)
        return self

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
        state stays, and what stands in `u` and `y` for them is ignored. `signals=True` returns the signals of rules that have them.

        Raises:
            ShapeError, DTypeError, InputError: `u`, `y`, `weight` or `mask` do not fit; nothing has changed then.
            NonFiniteLossError: the loss of this step is not finite (looked at on the CPU only); nothing has changed then.
        """
        weights = next(self.network.parameters())
        if u.dtype != weights.dtype or u.device != weights.device:
            raise DTypeError(f"inputs are {u.dtype} on {u.device}, the network is {weights.dtype} on {weights.device}; move one", dtype=u.dtype)
        batch = tuple(u.shape[: u.dim() - self.network.recurrent[0].unit_dims])
        if self.states is None:
            self.init(*batch)
        elif batch != self.batch:
            raise ShapeError(
                f"{batch} samples came after {self.batch}; call init({', '.join(map(str, batch))}) to start anew, or mask rows that ended",
                got=batch,
                expected=self.batch,
            )
        rows = rows_of(batch, y, weight, mask, u.device)
        if rows.present is not None:
            u = torch.where(rows.present.reshape(*batch, *(1,) * (u.dim() - len(batch))), u, torch.zeros_like(u))
        result = self._learn(u, None if rows.live is False else y, rows, signals)
        self.steps += 1
        if rows.live is not False:
            self._unlearned = True
            if self.update == "step":
                self.apply()
        return result

    def reset(self, rows: Tensor | None = None, *, statistics: bool = False) -> None:
        """Begin a new sequence: in every row, or in those where `rows` `(batch,)` is true.

        Gradients of what was seen are kept. `statistics=True` forgets also what a rule has learned of the network besides its weights.
        """
        if self.states is None:
            if rows is not None:
                raise StreamError("reset(rows) before the first step: there are no rows yet; call init(batch) or step first")
        else:
            zero = self.network.zero_state(*self.batch)
            if rows is None:
                self.flush()
                self.states = zero
            else:
                rows = self._checked_rows(rows)
                self.states = tuple(
                    select(rows, fresh, state, layer.unit_dims) for fresh, state, layer in zip(zero, self.states, self.network.recurrent, strict=True)
                )
            self._forget(rows)
        if statistics:
            self._forget_statistics()

    def _checked_rows(self, rows: Tensor) -> Tensor:
        if rows.dtype != torch.bool:
            raise DTypeError(f"rows is boolean, true where a sequence begins, got {rows.dtype}", dtype=rows.dtype)
        if rows.shape != self.batch[len(self.batch) - rows.dim() :] or rows.dim() == 0:
            raise ShapeError(f"rows has shape {tuple(rows.shape)}, the batch {self.batch}", shape=tuple(rows.shape), batch=self.batch)
        return rows.to(next(self.network.parameters()).device).expand(self.batch)

    def flush(self) -> None:
        """Bring gradients that a rule still owes (those of an open window) into `.grad`; rules without windows owe none."""

    def apply(self) -> None:
        """Move the weights by the gradients gathered since the last time; nothing happens where there are none."""
        self.flush()
        if not self._unlearned:
            return
        if self.clip is not None:
            nn.utils.clip_grad_norm_([p for p in self.network.parameters() if p.grad is not None], self.clip)
        self.optimizer.step()
        self.buffers.spent = True
        self._unlearned = False

    def _finite(self, loss: Tensor) -> None:
        """Raise if the loss is not finite, before anything changes. On a GPU that would stop the stream at each step, so it is left to `train`."""
        if loss.device.type == "cpu" and loss.dim() == 0 and not math.isfinite(number := loss.item()):
            raise NonFiniteLossError(
                f"the loss of step {self.steps} is {number}; the rate is probably too high, or a target is not finite. Nothing has changed",
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
