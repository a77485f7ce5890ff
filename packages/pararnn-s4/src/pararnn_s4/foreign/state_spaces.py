"""`from_state_spaces`: layers of the standalone `models/s4/s4.py` of state-spaces/s4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_s4.foreign.building import Sizes, empty_layer
from pararnn_s4.foreign.conversions import count_twice, limit_band, restore_output
from pararnn_s4.foreign.reading import agree, fill, settle, tensors_of
from pararnn_s4.foreign.starts import STARTS
from pararnn_s4.layers.s4 import S4
from pararnn_s4.layers.s4d import S4D
from pararnn_s4.modules.activation import GATED

KERNEL = "layer.kernel."
LENGTH = "layer.kernel.l_kernel"
DIAGONAL = ("s4d", "diag")
LOW_RANK = ("s4", "nplr", "dplr")
# What the tensors say too.
SIZES = ("d_model", "d_state", "channels", "n_ssm", "rank", "dt_tie", "is_real", "mode", "kernel")
PASSED_ON: dict[str, Any] = {
    "bottleneck": None,
    "mult_act": None,
    "activation": "gelu",
    "dropout": 0.0,
    "tie_dropout": False,
    "transposed": True,
    "l_max": None,
    "swap_channels": False,
    "drop_kernel": 0.0,
    "dt_transform": "exp",
    "dt_fast": False,
    "real_transform": "exp",
    "imag_transform": "none",
    "lr": None,
}
OTHERS: dict[str, Any] = {"final_act": "glu", "postact": None, "gate": None, "gate_act": None, "bidirectional": False, "bandlimit": None, "wd": 0.0}
DEFAULTS: dict[str, Any] = {**dict.fromkeys(SIZES), **PASSED_ON, **OTHERS, "disc": "zoh"}


def from_state_spaces(state_dict: Mapping[str, Tensor], *, prefix: str = "", **arguments: Any) -> S4 | S4D:
    """The layer that computes what `S4Block` of the standalone `models/s4/s4.py` computes with this `state_dict`.

    Whether its kernel is diagonal, and its sizes, the tensors say. All else is in `arguments`: pass what you passed to `S4Block`. The
    defaults are the same, so that sequences are `(batch, d_model, length)` unless `transposed=False`. What decides where training starts may
    be among them.

    Args:
        state_dict: of the layer, or of a model that has it under `prefix`.
        prefix: what names in `state_dict` begin with, such as `"s4_layers.0."`; other names are left aside.
        arguments: of the layer's constructor.

    Raises:
        InputError: missing or unknown names, a C that cannot be restored.
        ShapeError: tensors that do not fit each other or the arguments.
        ConfigError: an argument that `S4Block` does not take, with which it cannot run, or that a state space cannot follow.

    Source: https://github.com/state-spaces/s4, version 4.
    """
    owner = "an S4Block of state-spaces"
    given = settle(arguments, owner=owner, defaults=DEFAULTS, unused=STARTS)
    tensors = tensors_of(state_dict, prefix=prefix, owner=owner, landmark=KERNEL + "A_real")
    sizes = Sizes.of(tensors, prefix=KERNEL, owner=owner)
    _refuse(given, sizes)
    channels = _channels(sizes, given, owner)
    _compare(sizes, channels, given, owner)
    decay = given["wd"]
    options = {
        **{name: given[name] for name in PASSED_ON},
        "channels": channels,
        "final_act": given["final_act"] if given["postact"] is None else given["postact"],
        # The reversed kernel starts at the next sample there.
        "bidirectional": "exclusive" if given["bidirectional"] else False,
        # S4Block leaves the decay of C to the optimiser.
        "wd": {**dict.fromkeys(("dt", "A", "B"), decay)} if not isinstance(decay, Mapping) else {k: v for k, v in decay.items() if k != "C"},
    }
    layer = empty_layer(sizes, options, like=tensors[KERNEL + "A_real"], disc=given["disc"])
    fill(layer, tensors, {name: _source(name) for name in layer.state_dict()}, also=(LENGTH,) if sizes.rank else (), owner=owner)
    if sizes.rank:
        restore_output(layer.ssm, int(tensors[LENGTH]))
    if sizes.is_real:
        count_twice(layer.ssm)
    if given["bandlimit"] is not None:
        limit_band(layer.ssm, given["bandlimit"])
    return layer


def _source(name: str) -> str:
    if name.startswith("ssm."):
        return KERNEL + name.removeprefix("ssm.")
    return "layer.D" if name == "D" else name


def _channels(sizes: Sizes, given: Mapping[str, Any], owner: str) -> int:
    """Channels, of which each direction and each half of a gated unit has its own output."""
    share = (2 if given["bidirectional"] else 1) * (2 if given["activation"] == GATED else 1)
    if sizes.outputs % share:
        asked = f"bidirectional={given['bidirectional']} and activation={given['activation']!r}"
        raise ShapeError(
            f"{owner} with {asked} has a multiple of {share} outputs a feature, but C is of {sizes.outputs}; pass the arguments it was made with"
        )
    return sizes.outputs // share


def _compare(sizes: Sizes, channels: int, given: Mapping[str, Any], owner: str) -> None:
    """Raise `ShapeError` where an argument contradicts the tensors."""
    found = {"d_model": sizes.d_model, "channels": channels, "n_ssm": sizes.n_ssm, "dt_tie": sizes.dt_tie, "is_real": sizes.is_real}
    if sizes.rank:
        # A diagonal kernel takes a rank, and ignores it.
        found["rank"] = sizes.rank
    agree(found, given, owner=owner)
    if given["d_state"] is not None:
        # Complex models keep half of it, rounded down; real ones all of it.
        expected = sizes.pairs if sizes.is_real else 2 * sizes.pairs
        agree({"d_state": expected}, {"d_state": given["d_state"] if sizes.is_real else given["d_state"] // 2 * 2}, owner=owner)
    kernel = given["mode"] or given["kernel"]
    expected_kernels = LOW_RANK if sizes.rank else DIAGONAL
    if kernel is not None and kernel not in expected_kernels:
        raise ShapeError(f"the kernel {kernel!r} was passed, but the tensors are those of one of {', '.join(expected_kernels)}; leave it out")


def _refuse(given: Mapping[str, Any], sizes: Sizes) -> None:
    """Raise for layers that cannot be built or run there, so that there is no output to agree with."""
    if given["gate"] is not None:
        raise ConfigError("an S4Block of state-spaces with a gate fails when it is built, so that it has no state_dict; use a pararnn_s4 layer anew")
    if given["bottleneck"] not in (None, 1):
        raise ConfigError(f"an S4Block of state-spaces with bottleneck={given['bottleneck']} fails at its first call; use a pararnn_s4 layer anew")
    if sizes.is_real and sizes.rank:
        raise ConfigError("an S4Block of state-spaces with is_real and low rank fails at its first call; use a pararnn_s4.S4 anew")
    if given["bandlimit"] is not None and (sizes.rank or sizes.is_real):
        raise ConfigError("bandlimit masks what a low-rank kernel keeps in place of C, so that its calls and steps differ; leave bandlimit out")
