"""Networks that learn side by side: their parameters stacked behind a leading axis `runs`, so that one step serves them all.

The modules stay what they are, so a rule trains an ensemble as it trains one network: `u` is `(runs, batch, *input)`, losses are `(runs,)`, and no
run sees another.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.network import Network


def stack_networks(networks: Sequence[Network]) -> Network:
    """One network with parameters `(runs, ...)`, copies of those of `networks`, which are equal but for their values.

    Raises:
        ConfigError: there is none, or they differ in modules, shapes, settings, buffers, or in what is frozen.
    """
    if not networks:
        raise ConfigError("an ensemble has at least one network, got none")
    first = networks[0]
    for index, other in enumerate(networks[1:], start=1):
        if difference := _difference(first, other):
            raise ConfigError(f"network {index} cannot learn beside network 0: {difference}; build both with the same settings", index=index)
    parameters = [dict(network.named_parameters()) for network in networks]
    stacked = copy.deepcopy(first)
    for name in parameters[0]:
        _replace(stacked, name, torch.stack([held[name].detach() for held in parameters]))
    return stacked


def unstack(network: Network) -> list[Network]:
    """The networks of an ensemble, as copies that stand alone.

    Raises:
        ShapeError: `network` is no ensemble.
    """
    return [_indexed(network, run) for run in range(_runs(network))]


def select_runs(network: Network, runs: Tensor | Sequence[int]) -> Network:
    """The ensemble of copies of `runs` (integers, repeated as often as they are named) of the ensemble `network`.

    Raises:
        ShapeError: `network` is no ensemble.
    """
    _runs(network)
    return _indexed(network, torch.as_tensor(runs, device=network.readout.bias.device))


def _indexed(network: Network, index: Tensor | int) -> Network:
    taken = copy.deepcopy(network)
    for name, parameter in network.named_parameters():
        _replace(taken, name, parameter.detach()[index].clone())
    return taken


def _runs(network: Network) -> int:
    if len(network.lead) != 1:
        shape = tuple(network.readout.bias.shape)
        raise ShapeError(f"an ensemble has parameters (runs, ...), this network's readout bias is {shape}; make one with stack_networks", shape=shape)
    return network.lead[0]


def _replace(network: Network, name: str, value: Tensor) -> None:
    owner, _, own = name.rpartition(".")
    module = network.get_submodule(owner)
    setattr(module, own, nn.Parameter(value, requires_grad=module.get_parameter(own).requires_grad))


def _difference(first: Network, other: Network) -> str:
    """Where `other` differs from `first` in more than the values of parameters; empty where it does not."""
    ours, theirs = list(first.named_modules()), list(other.named_modules())
    if [(name, type(module)) for name, module in ours] != [(name, type(module)) for name, module in theirs]:
        return "its modules are others"
    for (name, one), (_, two) in zip(ours, theirs, strict=True):
        if settings := _unequal(_settings(one), _settings(two)):
            return f"{settings} of module {name!r} differ"
    if form := _unequal({n: _form(p) for n, p in first.named_parameters()}, {n: _form(p) for n, p in other.named_parameters()}):
        return f"shape, dtype, device or requires_grad of {form} differ"
    buffers, held = dict(first.named_buffers()), dict(other.named_buffers())
    differing = [
        name for name in buffers.keys() | held.keys() if name not in buffers or name not in held or not torch.equal(buffers[name], held[name])
    ]
    return f"buffers {', '.join(sorted(differing))} differ" if differing else ""


def _form(parameter: Tensor) -> tuple[object, ...]:
    return parameter.shape, parameter.dtype, parameter.device, parameter.requires_grad


def _settings(module: nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, Tensor)}


def _unequal(one: dict[str, object], two: dict[str, object]) -> str:
    names = [name for name in one.keys() | two.keys() if name not in one or name not in two or one[name] != two[name]]
    return ", ".join(sorted(names))
