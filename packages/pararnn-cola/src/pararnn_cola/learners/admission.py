"""What a learner is given: a look at it before anything changes."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_cola.errors import StreamError
from pararnn_cola.learners.surroundings import refuse_autocast
from pararnn_cola.network import Network, States


def optimizer_of(network: Network, given: torch.optim.Optimizer | None, lr: float) -> torch.optim.Optimizer:
    """The optimizer that was given, or SGD over all that is not frozen.

    Raises:
        ConfigError: nothing can be trained, or the optimizer moves nothing of the network, or cannot work on gradients alone.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("every parameter of the network is frozen, so there is nothing to learn; call requires_grad_() on some")
    if given is None:
        return torch.optim.SGD(trained, lr=lr)
    if not isinstance(given, torch.optim.Optimizer):
        raise ConfigError(f"optimizer={given!r} is no torch optimizer; make one, such as torch.optim.Adam(network.parameters(), lr=0.001)")
    if isinstance(given, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates the loss several times an update, but a step of a stream is seen once; take SGD, Adam or another")
    moved = {parameter for group in given.param_groups for parameter in group["params"]}
    if moved.isdisjoint(trained):
        raise ConfigError(
            f"{type(given).__name__} holds {len(moved)} parameters, none of which is a trainable one of this network; make it from "
            "network.parameters(), after the network has its final parameters"
        )
    return given


def check_one_kind(network: Network) -> None:
    """Raise `DTypeError` if the parameters of `network` are not all of one dtype on one device."""
    kinds = {(parameter.dtype, str(parameter.device)) for parameter in network.parameters()}
    if len(kinds) > 1:
        found = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise DTypeError(f"the network has parameters in {found}; bring all into one with network.to(...)", kinds=kinds)


def check_batch(batch: tuple[int, ...], lead: tuple[int, ...]) -> None:
    """Raise `ConfigError` if samples of shape `batch` are none, or none for networks side by side as `lead` says."""
    if not batch or any(not isinstance(size, int) or size < 1 for size in batch):
        raise ConfigError(f"init{batch} is no batch; give the number of samples, at least 1", batch=batch)
    if batch[:-1] != lead:
        expected = ", ".join([*map(str, lead), "batch"])
        raise ConfigError(f"init({', '.join(map(str, batch))}) does not fit the network; it takes init({expected})", batch=batch)


def batch_of(u: Tensor, weights: Tensor, lead: tuple[int, ...], input_dims: int) -> tuple[int, ...]:
    """The shape of the samples in one step's inputs `u` `(*lead, batch, *input)` for a network with parameters like `weights`.

    Raises:
        DTypeError: `u` is no tensor, or is of another dtype or device than the network.
        ShapeError: it is not one step of at least one sample.
        ConfigError: autocast is active.
    """
    if not isinstance(u, Tensor):
        raise DTypeError(f"inputs are a tensor (batch, *input), got {type(u).__name__}", type=type(u))
    if u.dtype != weights.dtype or u.device != weights.device:
        raise DTypeError(f"inputs are {u.dtype} on {u.device}, the network is {weights.dtype} on {weights.device}; move one", dtype=u.dtype)
    refuse_autocast(u.device)
    batch = tuple(u.shape[: u.dim() - input_dims])
    if len(batch) != len(lead) + 1 or batch[:-1] != lead or batch[-1] == 0:
        expected = ", ".join([*map(str, lead), "batch", "*input"])
        raise ShapeError(f"inputs have shape {tuple(u.shape)}; one step of at least one sample, ({expected}), was expected", shape=tuple(u.shape))
    return batch


def check_stream(batch: tuple[int, ...], u: Tensor, expected: tuple[int, ...], states: States) -> None:
    """Raise if inputs `u` with samples of shape `batch` cannot follow `states`, which are for samples of shape `expected`.

    Raises:
        ShapeError: the batch changed.
        StreamError: the network moved.
    """
    if batch != expected:
        raise ShapeError(
            f"{batch} samples came after {expected}; call init({', '.join(map(str, batch))}) to start anew, or mask rows that ended; a last "
            "batch that is smaller than the others is left out by a DataLoader(..., drop_last=True)",
            got=batch,
            expected=expected,
        )
    state = states[0][0]
    if state.dtype != u.dtype or state.device != u.device:
        raise StreamError(
            f"the network moved from {state.dtype} on {state.device} to {u.dtype} on {u.device} after its first step, but statistics and "
            "optimizer did not; move it before, or make a new learner"
        )
