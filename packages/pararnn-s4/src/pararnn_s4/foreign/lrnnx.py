"""`from_lrnnx`: layers of lrnnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn_s4.foreign.building import Sizes, empty_layer
from pararnn_s4.foreign.conversions import count_twice, restore_output
from pararnn_s4.foreign.reading import agree, fill, settle, tensors_of
from pararnn_s4.foreign.starts import STARTS
from pararnn_s4.layers.s4 import S4
from pararnn_s4.layers.s4d import S4D

KERNEL = "layer.kernel."
LENGTH = "layer.kernel.l_kernel"
# A state_dict of lrnnx has these twice, with and without the name of the kernel.
SHARED = ("inv_dt", "A_real", "A_imag", "B", "C", "P")
# What the tensors say too; these are passed on after None.
SIZES = ("d_model", "d_state", "channels", "n_ssm", "rank", "dt_tie", "is_real")
PASSED_ON: dict[str, Any] = {
    "bottleneck": None,
    "gate": None,
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
    "wd": 0.0,
}
DEFAULTS: dict[str, Any] = {**dict.fromkeys(SIZES), **PASSED_ON, "final_act": "glu", "postact": None, "disc": "zoh"}


def from_lrnnx(state_dict: Mapping[str, Tensor], *, prefix: str = "", **arguments: Any) -> S4 | S4D:
    """The layer that computes what `S4` or `S4D` of `lrnnx.models.lti` computes with this `state_dict`.

    Which of the two it is, and its sizes, the tensors say. All else is in `arguments`: pass what you passed to lrnnx. The defaults are the
    same, so that sequences are `(batch, d_model, length)` unless `transposed=False`. What decides where training starts may be among them.

    Args:
        state_dict: of the layer, or of a model that has it under `prefix`.
        prefix: what names in `state_dict` begin with, such as `"layers.0."`; other names are left aside.
        arguments: of the layer's constructor.

    Raises:
        InputError: missing or unknown names, copies of one parameter that differ, a C that cannot be restored.
        ShapeError: tensors that do not fit each other or the arguments.
        ConfigError: an argument that lrnnx does not take, or with which its layers cannot run.

    Source: lrnnx 1.0.0.post1.
    """
    owner = "an S4 or S4D of lrnnx"
    given = settle(arguments, owner=owner, defaults=DEFAULTS, unused=STARTS)
    tensors = tensors_of(_each_once(state_dict, prefix), prefix=prefix, owner=owner, landmark=KERNEL + "A_real")
    sizes = Sizes.of(tensors, prefix=KERNEL, owner=owner)
    owner = "an S4 of lrnnx" if sizes.rank else "an S4D of lrnnx"
    _refuse(given, sizes)
    _compare(sizes, given, owner)
    # GELU stands in all these places whatever is asked for; only None leaves out the last linear together with its own.
    last = None if given["final_act"] is None and given["postact"] is None else "gelu"
    options = {"channels": sizes.outputs, "activation": "gelu", "mult_act": "gelu", "gate_act": "gelu", "final_act": last}
    layer = empty_layer(sizes, {**options, **{name: given[name] for name in PASSED_ON}}, like=tensors[KERNEL + "A_real"], disc=given["disc"])
    sources = {name: KERNEL + name.removeprefix("ssm.") if name.startswith("ssm.") else name for name in layer.state_dict()}
    fill(layer, tensors, sources, also=(LENGTH,) if sizes.rank else (), owner=owner)
    if sizes.rank:
        restore_output(layer.ssm, int(tensors[LENGTH]))
    if sizes.is_real:
        count_twice(layer.ssm)
    return layer


def _each_once(state_dict: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """The state_dict with the parameters of the state space under the kernel's names only."""
    if not isinstance(state_dict, Mapping):
        return state_dict
    tensors = dict(state_dict)
    for name in SHARED:
        ours = tensors.pop(prefix + name, None)
        theirs = tensors.get(prefix + KERNEL + name)
        # Whoever saves shared tensors once may have kept either name.
        if theirs is None and ours is not None:
            tensors[prefix + KERNEL + name] = ours
        elif theirs is not None and ours is not None and not _same(ours, theirs):
            raise InputError(
                f"{prefix + name} and {prefix + KERNEL + name} are one parameter in lrnnx, but differ here; lrnnx computes with the second and loads "
                "it last, so delete the first if nothing else is known"
            )
    return tensors


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def _compare(sizes: Sizes, given: Mapping[str, Any], owner: str) -> None:
    """Raise `ShapeError` where an argument contradicts the tensors."""
    found = {"d_model": sizes.d_model, "channels": sizes.outputs, "n_ssm": sizes.n_ssm, "dt_tie": sizes.dt_tie, "is_real": sizes.is_real}
    if sizes.rank:
        # A diagonal layer takes a rank, and ignores it.
        found["rank"] = sizes.rank
    agree(found, given, owner=owner)
    if given["d_state"] is not None:
        # Half of it is kept, rounded down, in real models too.
        agree({"d_state": 2 * sizes.pairs}, {"d_state": given["d_state"] // 2 * 2}, owner=owner)


def _refuse(given: Mapping[str, Any], sizes: Sizes) -> None:
    """Raise for layers that lrnnx builds but cannot run, so that there is no output to agree with."""
    if sizes.is_real and sizes.rank:
        raise ConfigError("an S4 of lrnnx with is_real=True fails at its first call, so that it has no outputs to agree with; use pararnn_s4.S4 anew")
    if given["bottleneck"] not in (None, 1):
        raise ConfigError(f"a layer of lrnnx with bottleneck={given['bottleneck']} fails at its first call; use a pararnn_s4 layer with it anew")
