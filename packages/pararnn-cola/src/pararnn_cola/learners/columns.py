"""Whose influence a rule carries forward: the columns of what it keeps, one for each number of each weight."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError
from pararnn_cola.network import Network


def kept_columns(network: Network, values: Tensor, columns: tuple[str, ...], wanted: tuple[str, ...]) -> Tensor:
    """`values` `(..., total)`, whose columns are of the parameters called `columns`, for those called `wanted`; zeros where they are new."""
    parts = dict(zip(columns, values.split(_sizes(network, columns), -1), strict=True))
    blank = dict(zip(wanted, _sizes(network, wanted), strict=True))
    return torch.cat(
        [parts[name] if name in parts else values.new_zeros(*values.shape[:-1], blank[name]) for name in wanted] or [values[..., :0]], -1
    )


def width(network: Network, columns: tuple[str, ...]) -> int:
    """How many columns the parameters of these names have."""
    return sum(_sizes(network, columns))


def places_of(network: Network, columns: tuple[str, ...]) -> Tensor:
    """Names of parameters as their places in the network, which a checkpoint can hold."""
    names = list(dict(network.named_parameters()))
    # On the CPU wherever the network is: it is Python that reads it.
    return torch.tensor([names.index(name) for name in columns], dtype=torch.int64, device="cpu")


def columns_of(network: Network, places: object) -> tuple[str, ...]:
    """The names that `places_of` gave places for.

    Raises:
        StreamError: they are no places of parameters of `network`.
    """
    names = list(dict(network.named_parameters()))
    found = places.tolist() if isinstance(places, Tensor) and places.dtype == torch.int64 and places.dim() == 1 else None
    if found is None or len({*found}) != len(found) or any(not 0 <= place < len(names) for place in found):
        raise StreamError(f"the checkpoint's columns are {found}, places of {len(names)} parameters; it is damaged, or of another network")
    return tuple(names[place] for place in found)


def _sizes(network: Network, names: tuple[str, ...]) -> list[int]:
    return [network.get_parameter(name).numel() for name in names]
