"""A learner's options and its network's settings in plain words, by which a checkpoint is told from one of another learner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from pararnn_cola.errors import StreamError
from pararnn_cola.learners.options import options_of
from pararnn_cola.losses import Loss
from pararnn_cola.network import Network


def settings_of(network: Network, loss: Loss, options: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be equal for a stream to go on bit for bit, by name: numbers, strings and lists only."""
    function = loss.function if loss.name == Loss.name else None
    named = {
        "loss": loss.name if function is None else f"custom {described(function)}",
        **{name: described(value) for name, value in options.items()},
    }
    for place, module in (*((f"layers.{index}", layer) for index, layer in enumerate(network.recurrent)), ("readout", network.readout)):
        named.update(_settings(place, module))
    return named


def compare_settings(saved: object, own: Mapping[str, Any]) -> None:
    """Raise `StreamError` if a checkpoint's settings are not a learner's `own`."""
    if not isinstance(saved, dict):
        raise StreamError("the checkpoint does not tell what options its learner had; it is damaged, or of another version")
    differing = [name for name in {**own, **saved} if name not in own or name not in saved or not _equal(saved[name], own[name])]
    if differing:
        told = [f"{name}={_told(saved, name)} in the checkpoint and {_told(own, name)} here" for name in differing]
        raise StreamError(f"{'; '.join(told)}: the stream would go on as another one; make network and learner as they were saved", names=differing)


def described(value: Any) -> Any:
    """`value` as numbers, strings, lists and dicts; of what is none of these, its name."""
    if value is None:
        return None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Tensor):
        return value.detach().tolist()
    if isinstance(value, list | tuple):
        return [described(part) for part in value]
    if isinstance(value, dict):
        return {str(key): described(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: described(getattr(value, part.name)) for part in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **parts}
    return getattr(value, "__name__", type(value).__name__)


def _settings(place: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, inner in module.named_modules(prefix=place):
        yield path, type(inner).__name__
        # Named as an argument it says how the module was made; other attributes may be counts, or what a step leaves behind.
        yield from ((f"{path}.{name}", described(vars(inner)[name])) for name in options_of(type(inner)) if name in vars(inner))


def _equal(one: Any, two: Any) -> bool:
    return bool(one == two) or (isinstance(one, float) and isinstance(two, float) and math.isnan(one) and math.isnan(two))


def _told(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "nothing")
    if isinstance(value, dict) and "name" in value:
        return repr(value["name"])
    return repr(value)
