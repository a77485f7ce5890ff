"""An optimizer for ensembles: each run has an algorithm, a rate and a bound of its gradient's norm of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError

Algorithm = Literal["sgd", "adam"]
BETAS = (0.9, 0.999)
EPS = 1e-8
NORM_EPS = 1e-6
"""what `clip_grad_norm_` adds to the norm"""


class EnsembleOptimizer(torch.optim.Optimizer):
    """SGD or Adam for parameters `(runs, ...)`: run by run what torch's optimizers do after `clip_grad_norm_`.

    `algorithm`, `lr` and `clip` (None: no bound) have one entry a run. Nothing branches by run, so a step can be captured in a CUDA graph, and a run
    whose gradient is not finite spoils only itself.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        algorithm: Sequence[Algorithm],
        lr: Sequence[float],
        clip: Sequence[float | None] | None = None,
    ) -> None:
        held = list(parameters)
        if not all(isinstance(parameter, Tensor) for parameter in held):
            raise ConfigError("EnsembleOptimizer takes parameters, not groups of them; rates are one a run: lr=[...]")
        clip = [None] * len(lr) if clip is None else clip
        _check(held, algorithm, lr, clip)
        device, dtype = held[0].device, held[0].dtype
        self.any_adam = "adam" in algorithm
        self.any_clip = any(bound is not None for bound in clip)
        settings = {
            "lr": torch.tensor(lr, dtype=dtype, device=device),
            "adam": torch.tensor([name == "adam" for name in algorithm], device=device),
            "clip": torch.tensor([float("inf") if bound is None else bound for bound in clip], dtype=dtype, device=device),
        }
        super().__init__(held, settings)
        if self.any_adam:
            for parameter in held:
                # The count is a float64 tensor: it moves inside a captured graph, and its powers are as exact as torch's own.
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float64, device=device),
                    "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                    "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move every run's parameters by its gradients in `.grad`, which stay as they are."""
        if closure is not None:
            raise ConfigError("EnsembleOptimizer evaluates nothing again, so it takes no closure; call step() after the gradients are there")
        for group in self.param_groups:
            moved = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            scale = _scale([gradient for _, gradient in moved], group["clip"]) if self.any_clip and moved else None
            for parameter, gradient in moved:
                self._move(parameter, gradient, scale, group["lr"], group["adam"])

    def _move(self, parameter: nn.Parameter, gradient: Tensor, scale: Tensor | None, lr: Tensor, adam: Tensor) -> None:
        if scale is not None:
            gradient = gradient * _per_run(scale, gradient)
        update = gradient
        if self.any_adam:
            state = self.state[parameter]
            count = state["step"].add_(1)
            first, second = ((1 - beta**count).to(gradient.dtype) for beta in BETAS)
            state["exp_avg"].lerp_(gradient, 1 - BETAS[0])
            state["exp_avg_sq"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            divisor = (state["exp_avg_sq"] / second).sqrt_().add_(EPS)
            update = torch.where(_per_run(adam, gradient), state["exp_avg"] / first / divisor, gradient)
        parameter.sub_(_per_run(lr, update) * update)


def _scale(gradients: list[Tensor], clip: Tensor) -> Tensor:
    """The factor `(runs,)` that brings each run's gradient within its bound."""
    squares = [torch.linalg.vecdot(flat, flat) for flat in (gradient.reshape(len(gradient), -1) for gradient in gradients)]
    return (clip / (torch.stack(squares).sum(0).sqrt() + NORM_EPS)).clamp_max(1)


def _per_run(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def _check(held: list[nn.Parameter], algorithm: Sequence[str], lr: Sequence[float], clip: Sequence[float | None]) -> None:
    if not held:
        raise ConfigError("there are no parameters to optimise")
    runs = len(lr)
    if not runs == len(algorithm) == len(clip):
        raise ConfigError(f"{runs} rates, {len(algorithm)} algorithms and {len(clip)} bounds; give one of each a run", runs=runs)
    wrong = [tuple(parameter.shape) for parameter in held if parameter.dim() == 0 or parameter.shape[0] != runs]
    if wrong:
        raise ShapeError(
            f"parameters of {runs} runs begin with that number, got shapes {wrong}; stack the networks with stack_networks", shapes=wrong
        )
    if unknown := sorted({*algorithm} - {"sgd", "adam"}):
        raise ConfigError(f'algorithms are "sgd" and "adam", got {unknown}', algorithm=unknown)
    if any(not 0 <= rate < float("inf") for rate in lr) or any(bound is not None and not bound > 0 for bound in clip):
        raise ConfigError("rates are finite and not negative, and bounds are above zero (None: no bound)", lr=list(lr), clip=list(clip))
