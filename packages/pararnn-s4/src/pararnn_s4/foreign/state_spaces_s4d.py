"""`from_state_spaces_s4d`: layers of the minimal `models/s4/s4d.py` of state-spaces/s4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pararnn_s4.foreign.building import Sizes, empty_diagonal_layer
from pararnn_s4.foreign.reading import agree, fill, settle, tensors_of
from pararnn_s4.layers.s4d import S4D

# Ours and theirs. B is 1 there.
SOURCES = {
    "ssm.C": "kernel.C",
    "ssm.inv_dt": "kernel.log_dt",
    "ssm.A_real": "kernel.log_A_real",
    "ssm.A_imag": "kernel.A_imag",
    "ssm.B": "B",
    "D": "D",
    "output_linear.0.weight": "output_linear.0.weight",
    "output_linear.0.bias": "output_linear.0.bias",
}
DEFAULTS: dict[str, Any] = {"d_model": None, "d_state": None, "dropout": 0.0, "transposed": True, "lr": None}


def from_state_spaces_s4d(state_dict: Mapping[str, Tensor], *, prefix: str = "", **arguments: Any) -> S4D:
    """The layer that computes what the minimal `S4D` of `models/s4/s4d.py` computes with this `state_dict`.

    Its sizes the tensors say. All else is in `arguments`: pass what you passed there. The defaults are the same, so that sequences are
    `(batch, d_model, length)` unless `transposed=False`.

    Args:
        state_dict: of the layer, or of a model that has it under `prefix`.
        prefix: what names in `state_dict` begin with, such as `"s4_layers.0."`; other names are left aside.
        arguments: of the layer's constructor.

    Raises:
        InputError: missing or unknown names.
        ShapeError: tensors that do not fit each other or the arguments.
        ConfigError: an argument that the layer does not take.

    Source: https://github.com/state-spaces/s4, version 4.
    """
    owner = "the minimal S4D of state-spaces"
    given = settle(arguments, owner=owner, defaults=DEFAULTS, unused=("dt_min", "dt_max"))
    tensors = _our_form(tensors_of(state_dict, prefix=prefix, owner=owner, landmark="kernel.log_A_real"))
    found = {ours.removeprefix("ssm."): tensors[theirs] for ours, theirs in SOURCES.items() if theirs in tensors}
    sizes = Sizes.of(found, prefix="", owner=owner)
    agree({"d_model": sizes.d_model}, given, owner=owner)
    if given["d_state"] is not None:
        agree({"d_state": 2 * sizes.pairs}, {"d_state": given["d_state"] // 2 * 2}, owner=owner)
    options = {
        "dropout": given["dropout"],
        # One mask for all samples of a sequence is the default of the dropout there.
        "tie_dropout": True,
        "transposed": given["transposed"],
        # B is no parameter there, and stays none; C has the settings of the optimiser.
        "lr": {"dt": given["lr"], "A": given["lr"], "B": 0.0},
        "wd": {"dt": 0.0, "A": 0.0},
    }
    layer = empty_diagonal_layer(sizes, options, like=tensors["kernel.log_A_real"], disc="zoh")
    fill(layer, tensors, SOURCES, owner=owner)
    return layer


def _our_form(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the dimensions of ours; those of other shapes are left for `fill` to name."""
    own = dict(tensors)
    for name, dimensions, place in (("D", 1, 0), ("kernel.log_dt", 1, 1)):
        if name in own and own[name].ndim == dimensions:
            own[name] = own[name].unsqueeze(place)
    if "output_linear.0.weight" in own and own["output_linear.0.weight"].ndim == 3:
        own["output_linear.0.weight"] = own["output_linear.0.weight"].squeeze(-1)
    if "kernel.C" in own and own["kernel.C"].ndim == 3:
        # The other one of each conjugate pair is kept there.
        output = own["kernel.C"].unsqueeze(0)
        own["kernel.C"] = output * output.new_tensor([1.0, -1.0])
        own["B"] = torch.zeros_like(output)
        own["B"][..., 0] = 1.0
    return own
