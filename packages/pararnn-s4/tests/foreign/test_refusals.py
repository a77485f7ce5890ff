"""State_dicts and arguments that cannot give a right layer are refused, with what to do."""

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_s4 import from_lrnnx, from_state_spaces, from_state_spaces_s4d

EACH = ["lrnnx_s4_legs", "lrnnx_s4d_legs", "state_spaces_legs", "state_spaces_diag", "state_spaces_s4d"]


@pytest.mark.parametrize("name", EACH)
def test_a_layer_is_found_in_a_model_by_its_prefix(golden, name):
    case = golden(name)
    model = {"encoder.weight": torch.zeros(1), **{f"layers.1.{key}": value for key, value in case.state_dict.items()}}
    layer = case.load(model, prefix="layers.1.", **case.arguments).eval()
    assert torch.equal(layer(case.x), case.layer()(case.x))


@pytest.mark.parametrize("name", EACH)
def test_a_forgotten_prefix_is_named(golden, name):
    case = golden(name)
    model = {f"layers.{i}.{key}": value for key, value in case.state_dict.items() for i in (0, 1)}
    with pytest.raises(InputError, match=r"pass prefix='layers\.0\.' or prefix='layers\.1\.'") as caught:
        case.load(model, **case.arguments)
    assert caught.value.data["prefixes"] == ["layers.0.", "layers.1."]


@pytest.mark.parametrize("name", EACH)
def test_a_name_too_many_is_an_error(golden, name):
    case = golden(name)
    with pytest.raises(InputError, match=r"has output_linear\.1\.weight") as caught:
        case.load({**case.state_dict, "output_linear.1.weight": torch.zeros(1)}, **case.arguments)
    assert caught.value.data["unknown"] == ["output_linear.1.weight"]


@pytest.mark.parametrize("name", EACH)
def test_every_name_is_needed(golden, name):
    case = golden(name)
    missing = [key for key in case.state_dict if key.startswith(("layer.", "kernel.", "output_linear"))]
    for key in missing:
        # A parameter that lrnnx has under two names is missing when both are.
        rest = {other: value for other, value in case.state_dict.items() if other not in (key, key.removeprefix("layer.kernel."))}
        with pytest.raises((InputError, ShapeError)):
            case.load(rest, **case.arguments)


@pytest.mark.parametrize("name", ["lrnnx_s4_legs", "state_spaces_legs"])
def test_without_the_length_that_c_was_prepared_for_nothing_is_guessed(golden, name):
    case = golden(name)
    rest = {key: value for key, value in case.state_dict.items() if not key.endswith("l_kernel")}
    with pytest.raises(InputError, match="C cannot be told from what a first call replaces it by"):
        case.load(rest, **case.arguments)


@pytest.mark.parametrize("kept", ["", "layer.kernel."], ids=["own_names", "kernel_names"])
def test_either_name_of_a_shared_tensor_of_lrnnx_is_enough(golden, kept):
    case = golden("lrnnx_s4_legs")
    dropped = "layer.kernel." if kept == "" else ""
    shared = [dropped + name for name in ("inv_dt", "A_real", "A_imag", "B", "C", "P")]
    layer = case.load({key: value for key, value in case.state_dict.items() if key not in shared}, **case.arguments).eval()
    assert torch.equal(layer(case.x), case.layer()(case.x))


def test_copies_of_one_parameter_that_differ_are_an_error(golden):
    case = golden("lrnnx_s4_legs")
    with pytest.raises(InputError, match=r"B and layer\.kernel\.B are one parameter in lrnnx, but differ here"):
        case.load({**case.state_dict, "B": case.state_dict["B"] + 1}, **case.arguments)


@pytest.mark.parametrize(
    ("name", "load", "right"),
    [
        ("state_spaces_legs", from_lrnnx, "from_state_spaces"),
        ("lrnnx_s4_legs", from_state_spaces, "from_lrnnx"),
        ("state_spaces_s4d", from_state_spaces, "from_state_spaces_s4d"),
        ("lrnnx_s4_legs", from_state_spaces_s4d, "from_lrnnx"),
    ],
)
def test_the_function_for_another_library_is_named(golden, name, load, right):
    with pytest.raises(InputError, match=rf"is it one for {right}\?"):
        load(golden(name).state_dict)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("lrnnx_s4_legs", {"d_model": 4}),
        ("lrnnx_s4_legs", {"d_state": 10}),
        ("lrnnx_s4_legs", {"rank": 2}),
        ("lrnnx_s4_legt_longer", {"channels": 1}),
        ("lrnnx_s4_fout_untied", {"dt_tie": True}),
        ("lrnnx_s4_fout_untied", {"n_ssm": 3}),
        ("lrnnx_s4d_real", {"is_real": False}),
        ("state_spaces_diag", {"mode": "dplr"}),
        ("state_spaces_legs", {"bidirectional": True}),
        ("state_spaces_two_sided", {"bidirectional": False}),
        ("state_spaces_s4d", {"d_state": 16}),
    ],
    ids=str,
)
def test_an_argument_that_the_tensors_contradict_is_an_error(golden, name, wrong):
    case = golden(name)
    with pytest.raises(ShapeError, match=r"pass|leave it out"):
        case.load(case.state_dict, **{**case.arguments, **wrong})


@pytest.mark.parametrize("name", ["state_spaces_legs", "state_spaces_diag"])
def test_a_last_activation_that_the_shapes_contradict_is_an_error(golden, name):
    case = golden(name)
    with pytest.raises(ShapeError, match=r"output_linear\.0\.weight is \(6, 3\) instead of \(3, 3\)"):
        case.load(case.state_dict, **{**case.arguments, "final_act": "gelu"})


@pytest.mark.parametrize(("name", "unknown"), [("lrnnx_s4_legs", "bidirectional"), ("state_spaces_legs", "d_output"), ("state_spaces_s4d", "init")])
def test_an_argument_that_the_library_does_not_take_is_an_error(golden, name, unknown):
    case = golden(name)
    with pytest.raises(ConfigError, match=f"takes no argument {unknown}; pass what you passed there"):
        case.load(case.state_dict, **case.arguments, **{unknown: True})


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("lrnnx_s4_legs", {"bottleneck": 3}, "fails at its first call"),
        ("state_spaces_legs", {"bottleneck": 3}, "fails at its first call"),
        ("state_spaces_legs", {"gate": 1}, "fails when it is built"),
        ("state_spaces_legs", {"bandlimit": 0.5}, "its calls and steps differ"),
        ("state_spaces_diag", {"disc": "dss"}, "depends on the length"),
    ],
)
def test_what_cannot_run_there_or_be_right_is_refused(golden, name, arguments, reason):
    case = golden(name)
    with pytest.raises(ConfigError, match=reason):
        case.load(case.state_dict, **{**case.arguments, **arguments})


@pytest.mark.parametrize(("name", "drop"), [("lrnnx_s4_legs", ("A_imag", "layer.kernel.A_imag")), ("state_spaces_legs", ("layer.kernel.A_imag",))])
def test_a_real_low_rank_model_is_refused(golden, name, drop):
    case = golden(name)
    tensors = {key: value[..., 0] if key.endswith((".C", ".B")) or key in ("B", "C") else value for key, value in case.state_dict.items()}
    with pytest.raises(ConfigError, match="fails at its first call"):
        case.load({key: value for key, value in tensors.items() if key not in drop}, **case.arguments)


def test_a_c_that_is_lost_in_what_was_stored_is_not_guessed(golden):
    case = golden("state_spaces_legs")
    still = {**case.state_dict, "layer.kernel.A_real": torch.full((3, 4), -80.0)}
    still |= {f"layer.kernel.{name}": torch.zeros_like(case.state_dict[f"layer.kernel.{name}"]) for name in ("A_imag", "P")}
    with pytest.raises(InputError, match=r"C cannot be restored from what was stored for a length of 20"):
        case.load(still, **case.arguments)


@pytest.mark.parametrize("name", EACH)
def test_parameters_of_a_training_that_diverged_are_named(golden, name):
    case = golden(name)
    key = next(key for key in case.state_dict if key.endswith(("dt",)) and "kernel" in key)
    broken = {**case.state_dict, key: case.state_dict[key] * torch.nan, "inv_dt": case.state_dict[key] * torch.nan}
    with pytest.raises(InputError, match="NaN or infinite"):
        case.load({name: broken[name] for name in case.state_dict}, **case.arguments)


@pytest.mark.parametrize("load", [from_lrnnx, from_state_spaces, from_state_spaces_s4d])
def test_a_module_or_a_checkpoint_in_place_of_its_state_dict_is_an_error(load):
    with pytest.raises(DTypeError, match=r"pass layer\.state_dict\(\)"):
        load(torch.nn.Linear(1, 1))
    with pytest.raises(DTypeError, match=r"epoch of the state_dict of .* are no tensors"):
        load({"epoch": 3})
