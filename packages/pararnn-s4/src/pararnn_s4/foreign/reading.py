"""Reading the state_dict of a layer of another library: nothing in it is left unread, nothing that it lacks is made up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError

# Names that only the layers of one function have.
TELLTALES = {"inv_dt": "from_lrnnx", "layer.D": "from_state_spaces", "kernel.log_A_real": "from_state_spaces_s4d"}
WITHOUT_LENGTH = (
    "; without l_kernel, C cannot be told from what a first call replaces it by: add it, torch.tensor(length that C was last prepared for), which is "
    "l_max or the first length, doubled as often as longer sequences came, or torch.tensor(0) if the layer was never called"
)


def settle(arguments: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any], unused: Collection[str]) -> dict[str, Any]:
    """The arguments that still matter, with `defaults` for those that were not passed.

    Args:
        arguments: what the constructor of the other library was called with.
        owner: that constructor, for messages.
        defaults: the arguments that decide what the layer computes, and what the other library takes them to be.
        unused: the arguments that only decided where training started, or nothing.

    Raises:
        ConfigError: an argument that the other library does not take.
    """
    unknown = sorted(set(arguments) - set(defaults) - set(unused))
    if unknown:
        raise ConfigError(f"{owner} takes no argument {', '.join(unknown)}; pass what you passed there, of: {', '.join(sorted(defaults))}")
    return {name: arguments.get(name, default) for name, default in defaults.items()}


def tensors_of(state_dict: Mapping[str, Tensor], *, prefix: str, owner: str, landmark: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names.

    Raises:
        DTypeError: no mapping of names to tensors.
        InputError: `landmark`, which such a layer always has, is not among them; the message names prefixes under which it is.
    """
    if not isinstance(state_dict, Mapping):
        raise DTypeError(f"a state_dict of {owner} is a mapping of names to tensors, got {type(state_dict).__name__}; pass layer.state_dict()")
    tensors = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
    others = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if others:
        raise DTypeError(f"{', '.join(others)} of the state_dict of {owner} are no tensors; pass the state_dict alone")
    if landmark not in tensors:
        found = sorted(name.removesuffix(landmark) for name in state_dict if name.endswith(landmark))
        kin = next((function for name, function in TELLTALES.items() if any(key.endswith(name) for key in tensors)), None)
        hint = f"pass prefix={' or prefix='.join(map(repr, found))}" if found else f"is it one for {kin}?" if kin else "is it that of such a layer?"
        raise InputError(f"the state_dict of {owner} has no {prefix + landmark!r}; {hint}", prefixes=found)
    return tensors


def agree(found: Mapping[str, Any], given: Mapping[str, Any], *, owner: str) -> None:
    """Raise `ShapeError` where an argument that was passed (is not None) contradicts what the tensors say."""
    for name, value in found.items():
        if given[name] is not None and given[name] != value:
            raise ShapeError(f"{name}={given[name]} was passed, but the tensors are those of {owner} with {name}={value}; pass that or leave it out")


def fill(layer: nn.Module, tensors: Mapping[str, Tensor], sources: Mapping[str, str], *, also: Collection[str] = (), owner: str) -> None:
    """Copy `tensors` into the parameters of `layer`, each from the name that `sources` gives it; names in `also` must be there too.

    Raises:
        InputError: names that are missing, or that nothing has a use for; numbers that are not finite.
        ShapeError: a tensor of another shape than its parameter.
    """
    own = layer.state_dict()
    missing = sorted({*sources.values(), *also} - set(tensors))
    unknown = sorted(set(tensors) - set(sources.values()) - set(also))
    if missing or unknown:
        faults = [f"it lacks {', '.join(missing)}"] if missing else []
        faults += [f"it has {', '.join(unknown)}, which would be left unused"] if unknown else []
        kin = next((f", or is it one for {function}?" for name, function in TELLTALES.items() if name in unknown), "")
        length = WITHOUT_LENGTH if any(name in missing for name in also) else ""
        raise InputError(
            f"this state_dict is not that of {owner} with these arguments: {' and '.join(faults)}; pass the arguments it was made with{kin}{length}",
            missing=missing,
            unknown=unknown,
        )
    wrong = [
        f"{theirs} is {tuple(tensors[theirs].shape)} instead of {tuple(own[ours].shape)}"
        for ours, theirs in sources.items()
        if tensors[theirs].shape != own[ours].shape
    ]
    if wrong:
        raise ShapeError(f"shapes are not those of {owner} with these arguments: {', '.join(wrong)}; pass the arguments it was made with")
    infinite = sorted(name for name in {*sources.values(), *also} if not bool(tensors[name].isfinite().all()))
    if infinite:
        raise InputError(f"{', '.join(infinite)} of {owner} hold NaN or infinite numbers; load what was saved before", names=infinite)
    layer.load_state_dict({ours: tensors[theirs] for ours, theirs in sources.items()}, strict=False)
