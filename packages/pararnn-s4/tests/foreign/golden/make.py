"""Runs layers of lrnnx and state-spaces and writes what they hold and give to one small JSON file a case.

    python make.py --lrnnx FOLDER_OF_THE_UNPACKED_SDIST --state-spaces CLONE

Every layer is trained for a few steps first, on sequences of `lengths` in turn, so that a C which the first call replaced has been trained in
that form, beside an A that has moved since. Then it is called once more, in evaluation mode, on `x`. The `y` of the file is from a copy in double
precision; `float32_error` is by how much the layer itself, in single precision, differs from that.
"""

import argparse
import contextlib
import importlib
import io
import json
import sys
import types
from pathlib import Path

import torch

D_MODEL, D_STATE, BATCH = 3, 8, 2
SIZES = {"d_model": D_MODEL, "d_state": D_STATE, "dt_min": 0.02, "dt_max": 0.3}

# Name: layer, arguments, lengths of training calls, length of x, arguments of the call.
CASES = {
    "lrnnx_s4_legs": ("lrnnx.S4", {"l_max": 20}, (20,), 20, {}),
    "lrnnx_s4_never_called": ("lrnnx.S4", {"l_max": 20}, (), 20, {}),
    "lrnnx_s4_legt_longer": ("lrnnx.S4", {"init": "legt", "rank": 2, "channels": 2, "transposed": False}, (9, 16), 30, {}),
    "lrnnx_s4_fout_untied": (
        "lrnnx.S4",
        {"init": "fout", "dt_tie": False, "n_ssm": 1, "dt_transform": "softplus", "transposed": False},
        (20,),
        20,
        {},
    ),
    "lrnnx_s4_gate": ("lrnnx.S4", {"gate": 2, "dt_fast": True, "real_transform": "softplus", "imag_transform": "exp"}, (16,), 16, {"steps": True}),
    "lrnnx_s4_rank3_no_linear": (
        "lrnnx.S4",
        {"init": "legs", "rank": 3, "channels": 2, "swap_channels": True, "final_act": None, "bottleneck": 1, "transposed": False},
        (12,),
        12,
        {"steps": True},
    ),
    "lrnnx_s4_lengths": ("lrnnx.S4", {"transposed": False, "l_max": 20}, (20,), 20, {"lengths": [13, 20]}),
    "lrnnx_s4_state": ("lrnnx.S4", {"transposed": False, "channels": 2, "lr": 0.001}, (20,), 20, {"state": True}),
    "lrnnx_s4_rate": ("lrnnx.S4", {"transposed": False}, (20,), 20, {"rate": 2.0}),
    "lrnnx_s4d_legs": ("lrnnx.S4D", {}, (20,), 20, {"steps": True}),
    "lrnnx_s4d_bilinear_gate": (
        "lrnnx.S4D",
        {"init": "diag-inv", "disc": "bilinear", "gate": 2, "real_transform": "relu", "dt_transform": "softplus", "transposed": False},
        (20,),
        20,
        {},
    ),
    "lrnnx_s4d_cut_kernel": (
        "lrnnx.S4D",
        {"init": "diag-lin", "l_max": 12, "channels": 2, "n_ssm": 1, "postact": "gelu", "final_act": None},
        (20,),
        20,
        {"steps": True},
    ),
    "lrnnx_s4d_real": ("lrnnx.S4D", {"init": "diag-real", "is_real": True, "transposed": False}, (20,), 20, {}),
    "lrnnx_s4d_rate": ("lrnnx.S4D", {"init": "diag-lin", "transposed": False}, (20,), 20, {"rate": 2.0}),
    "lrnnx_s4d_state": ("lrnnx.S4D", {"init": "diag-lin", "transposed": False}, (20,), 20, {"state": True}),
    "state_spaces_legs": ("state_spaces.S4Block", {"l_max": 20}, (20,), 20, {"steps": True}),
    "state_spaces_two_sided": (
        "state_spaces.S4Block",
        {"bidirectional": True, "channels": 2, "swap_channels": True, "transposed": False, "n_ssm": 1},
        (20,),
        20,
        {},
    ),
    "state_spaces_fout_longer": ("state_spaces.S4Block", {"init": "fout", "dt_tie": False, "mult_act": "tanh", "final_act": "relu"}, (9, 16), 30, {}),
    "state_spaces_legt": ("state_spaces.S4Block", {"init": "legt", "rank": 2, "dt_fast": True, "postact": "id", "final_act": None}, (16,), 16, {}),
    "state_spaces_two_sided_cut": (
        "state_spaces.S4Block",
        {"bidirectional": True, "l_max": 12, "activation": "glu", "bottleneck": 1, "final_act": None, "transposed": False},
        (20,),
        20,
        {},
    ),
    "state_spaces_state": ("state_spaces.S4Block", {"transposed": False}, (20,), 20, {"state": True}),
    "state_spaces_rate": ("state_spaces.S4Block", {"transposed": False}, (20,), 20, {"rate": 2.0}),
    "state_spaces_diag": ("state_spaces.S4Block", {"mode": "diag", "init": "diag-lin"}, (20,), 20, {"steps": True}),
    "state_spaces_diag_bilinear_two_sided": (
        "state_spaces.S4Block",
        {"mode": "diag", "init": "diag-inv", "disc": "bilinear", "bidirectional": True, "activation": None, "imag_transform": "softplus"},
        (20,),
        20,
        {},
    ),
    "state_spaces_diag_real": ("state_spaces.S4Block", {"mode": "s4d", "init": "diag-real", "is_real": True, "transposed": False}, (20,), 20, {}),
    "state_spaces_diag_band": ("state_spaces.S4Block", {"mode": None, "kernel": "s4d", "init": "diag-lin", "bandlimit": 0.1}, (20,), 20, {}),
    "state_spaces_s4d": ("state_spaces.S4D", {}, (20,), 20, {}),
    "state_spaces_s4d_not_transposed": ("state_spaces.S4D", {"transposed": False}, (20,), 20, {}),
}


def layers_of(lrnnx, state_spaces):
    # The package itself imports CUDA extensions that its S4 layers have no use for.
    for name in ("lrnnx", "lrnnx.ops", "lrnnx.core", "lrnnx.models", "lrnnx.models.lti"):
        package = types.ModuleType(name)
        package.__path__ = [str(lrnnx / name.replace(".", "/"))]
        sys.modules[name] = package
    sys.path.insert(0, str(state_spaces))
    return {
        "lrnnx.S4": importlib.import_module("lrnnx.models.lti.s4").S4,
        "lrnnx.S4D": importlib.import_module("lrnnx.models.lti.s4d").S4D,
        "state_spaces.S4Block": importlib.import_module("models.s4.s4").S4Block,
        "state_spaces.S4D": importlib.import_module("models.s4.s4d").S4D,
    }


def written(tensor):
    # All digits of float32; in double precision as many as anything is compared to.
    digits = 9 if tensor.dtype in (torch.float32, torch.complex64) else 12
    shape, values = list(tensor.shape), tensor.detach().flatten()
    if tensor.is_complex():
        shape, values = [*shape, 2], torch.view_as_real(values).flatten()
    return {"shape": shape, "values": [value if isinstance(value, int) else float(f"{value:.{digits}g}") for value in values.tolist()]}


def tensors_once(state_dict):
    """The tensors by name; one that came under an earlier name already is that name."""
    seen, result = {}, {}
    for name, tensor in state_dict.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        result[name] = seen[key] if key in seen else written(tensor)
        seen.setdefault(key, name)
    return result


def run(layers, layer, arguments, lengths, length, call):
    torch.manual_seed(0)
    sizes = {"d_model": D_MODEL, "d_state": D_STATE} if layer == "state_spaces.S4D" else SIZES
    model = layers[layer](**sizes, **arguments)
    features_first = arguments.get("transposed", True)
    shape = {True: lambda n: (BATCH, D_MODEL, n), False: lambda n: (BATCH, n, D_MODEL)}[features_first]
    for number in lengths:
        for _ in range(2):
            outputs, _ = model(torch.randn(shape(number)))
            parameters = list(model.parameters())
            grads = torch.autograd.grad((outputs * torch.randn_like(outputs)).sum(), parameters)
            with torch.no_grad():
                for parameter, grad in zip(parameters, grads, strict=True):
                    parameter -= 0.05 * grad / grad.abs().max()
    state_dict = {name: tensor.clone() for name, tensor in model.state_dict().items()} if not lengths else model.state_dict()
    record = {"layer": layer, "arguments": {**sizes, **arguments}, "call": call, "state_dict": tensors_once(state_dict)}
    # A new layer, because an old one keeps its roots of unity in the precision that it was first called in.
    exact = layers[layer](**sizes, **arguments)
    exact.load_state_dict(state_dict)
    exact = exact.eval().double()
    x, state = torch.randn(shape(length)), torch.randn(BATCH, D_MODEL, D_STATE // 2, dtype=torch.cfloat)
    record["x"] = written(x)
    options = {key: value for key, value in call.items() if key not in ("state", "steps")}
    if "lengths" in options:
        options["lengths"] = torch.tensor(options["lengths"])
    if "state" in call:
        options["state"] = state
        record["state"] = written(state)
    with torch.no_grad():
        rounded, _ = model.eval()(x, **options)
        if "state" in call:
            options["state"] = state.cdouble()
        y, after = exact(x.double(), **options)
        record |= {"y": written(y), "float32_error": (rounded - y).abs().max().item()}
        if after is not None:
            record["next_state"] = written(after)
        if "steps" in call:
            record["steps"] = written(steps_of(exact, x.double(), 2 if features_first else 1))
    return record


def steps_of(model, x, time):
    """The outputs of one call a sample."""
    if hasattr(model, "allocate_inference_cache"):
        state = model.allocate_inference_cache(BATCH)
    else:
        model.setup_step()
        state = model.default_state(BATCH)
    outputs = []
    for sample in x.unbind(time):
        output, state = model.step(sample, state)
        outputs.append(output)
    return torch.stack(outputs, time)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lrnnx", type=Path, required=True)
    parser.add_argument("--state-spaces", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):
        layers = layers_of(options.lrnnx, options.state_spaces)
        for name, case in CASES.items():
            (options.to / f"{name}.json").write_text(json.dumps(run(layers, *case), indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
