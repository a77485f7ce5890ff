"""What is stored on a module, and that it gives the system back."""
# ruff: noqa: N803, N806 -- the names of the literature and of the reference functions.

import copy
import logging

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_s4 import init_dt, init_ssm_dplr, process_dplr_params, process_ssm_params, register_ssm_params

FEATURES, SYSTEMS, HALF, CHANNELS, RANK = 6, 3, 4, 2, 2


def system(init="legs", dtype=torch.float64, **options):
    A, P, B, C = init_ssm_dplr(2 * HALF, FEATURES, SYSTEMS, CHANNELS, RANK, init, cdtype=dtype.to_complex(), **options)
    return {"A": A, "B": B, "C": C, "inv_dt": init_dt(FEATURES, 2 * HALF, dtype=dtype), "P": P}


def register(
    tensors, module=None, *, real_transform="exp", imag_transform="none", dt_fast=False, is_real=False, diag=False, verbose=False, **settings
):
    module = nn.Module() if module is None else module
    repeat = register_ssm_params(
        module,
        *tensors.values(),
        FEATURES,
        SYSTEMS,
        HALF,
        CHANNELS,
        RANK,
        dt_fast,
        real_transform,
        imag_transform,
        is_real,
        verbose,
        None,
        diag,
        **settings,
    )
    assert repeat == FEATURES // SYSTEMS
    return module


def processed(module, **options):
    stored = (module.A_real, getattr(module, "A_imag", None), module.B, module.C, module.P, module.inv_dt)
    return process_dplr_params(*stored, repeat_factor=FEATURES // SYSTEMS, **options)


def tiled(tensor):
    return torch.cat([tensor, tensor], dim=-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("dt_fast", [False, True])
@pytest.mark.parametrize(("real_transform", "imag_transform"), [("exp", "none"), ("softplus", "softplus"), ("relu", "relu"), ("sigmoid", "exp")])
def test_the_system_comes_back_in_the_dtype_of_the_module(real_transform, imag_transform, dt_fast, dtype):
    tensors = system(dtype=dtype)
    transforms = {"real_transform": real_transform, "imag_transform": imag_transform, "dt_fast": dt_fast}
    dt, A, B, C, P, Q = processed(register(tensors, **transforms), **transforms)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(dt, tensors["inv_dt"].exp(), **tolerance)
    torch.testing.assert_close(A, tiled(tensors["A"]), **tolerance)
    torch.testing.assert_close(B, tiled(tensors["B"]).unsqueeze(0), **tolerance)
    torch.testing.assert_close(C, tensors["C"].conj(), **tolerance)
    torch.testing.assert_close(P, tiled(tensors["P"]), **tolerance)
    torch.testing.assert_close(Q, tiled(tensors["P"]).conj(), **tolerance)
    assert not Q.is_conj()


@pytest.mark.parametrize("diag", [False, True])
def test_names_shapes_and_order_are_those_that_other_libraries_store(diag):
    stored = register(system(), diag=diag).state_dict()
    shapes = {
        "inv_dt": (FEATURES, 1),
        "C": (CHANNELS, FEATURES, HALF, 2),
        "B": (1, SYSTEMS, HALF, 2),
        "A_real": (SYSTEMS, HALF),
        "A_imag": (SYSTEMS, HALF),
        "P": (RANK, SYSTEMS, HALF, 2),
    }
    if diag:
        del shapes["P"]
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == shapes
    assert list(stored) == list(shapes)


def test_zero_frequencies_are_stored_as_zero():
    module = register(system("diag-lin"), diag=True)
    assert (module.A_imag[:, 0] == 0).all()


def test_parameters_are_in_memory_of_their_own():
    tensors = system()
    before = copy.deepcopy(tensors)
    module = register(tensors)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7.0)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name])


def test_an_output_vector_may_be_shared_by_features_and_channels():
    tensors = system()
    tensors["C"] = tensors["C"][:1, :1]
    C = processed(register(tensors))[3]
    assert torch.equal(C, tensors["C"].conj().expand(CHANNELS, FEATURES, HALF))


def test_time_steps_for_each_state_are_accepted():
    tensors = system()
    tensors["inv_dt"] = init_dt(FEATURES, 2 * HALF, dt_tie=False, dtype=torch.float64)
    dt, A, _, _, dtA = process_ssm_params(*(getattr(register(tensors), name) for name in ("A_real", "A_imag", "B", "C", "inv_dt")), repeat_factor=2)
    assert dt.shape == (FEATURES, HALF)
    assert torch.equal(dtA, dt * A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_real_systems_are_stored_and_processed_as_real_numbers(dtype):
    tensors = system("diag-real", dtype)
    tensors["P"] = tensors["B"].expand(RANK, SYSTEMS, HALF)
    module = register(tensors, is_real=True)
    assert not hasattr(module, "A_imag")
    results = processed(module, is_real=True)
    assert {tensor.dtype for tensor in results} == {dtype}
    dt, A, B, C, P, Q = results
    torch.testing.assert_close(A, -torch.arange(1, HALF + 1, dtype=dtype).expand(FEATURES, HALF))
    assert torch.equal(B, torch.ones_like(B))
    assert torch.equal(C, tensors["C"].real)
    assert torch.equal(P, Q)
    assert dt.shape == (FEATURES, 1)


def test_real_tensors_are_accepted_for_real_systems():
    tensors = {name: tensor.real if tensor.is_complex() else tensor for name, tensor in system("diag-real").items()}
    assert set(dict(register(tensors, is_real=True, diag=True).named_parameters())) == {"inv_dt", "C", "B", "A_real"}


@pytest.mark.parametrize("rate", [0.5, torch.tensor(2.0, dtype=torch.float64)], ids=["number", "tensor"])
def test_a_rate_multiplies_the_time_steps_alone(rate):
    module = register(system())
    plain, resampled = processed(module), processed(module, rate=rate)
    torch.testing.assert_close(resampled[0], plain[0] * rate, rtol=1e-15, atol=0)
    for one, other in zip(resampled[1:], plain[1:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_modules_are_processed_in_single_precision(dtype):
    module = register(system(dtype=torch.float32)).to(dtype)
    results = processed(module)
    assert results[0].dtype == torch.float32
    assert {tensor.dtype for tensor in results[1:]} == {torch.complex64}


def test_gradients_reach_every_stored_parameter():
    module = register(system())
    loss = sum(tensor.abs().square().sum() for tensor in processed(module))
    loss.backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in module.parameters())


def optim(module):
    return {name: parameter._optim for name, parameter in module.named_parameters()}


def test_without_settings_only_the_weight_decay_is_switched_off():
    assert set(map(str, optim(register(system())).values())) == {"{'weight_decay': 0.0}"}


def test_numbers_hold_for_all_parameters():
    assert set(map(str, optim(register(system(), lr=1e-3, wd=0.1)).values())) == {"{'lr': 0.001, 'weight_decay': 0.1}"}


def test_mappings_hold_for_what_they_name_and_a_stored_name_goes_before_its_group():
    module = register(system(), lr={"A": 1e-3, "A_imag": 1e-4, "dt": 1e-2}, wd={"B": 0.0, "inv_dt": 0.5})
    assert optim(module) == {
        "inv_dt": {"lr": 1e-2, "weight_decay": 0.5},
        "C": {},
        "B": {"weight_decay": 0.0},
        "A_real": {"lr": 1e-3},
        "A_imag": {"lr": 1e-4},
        "P": {"lr": 1e-3},
    }


@pytest.mark.parametrize("zero", [0, 0.0])
def test_a_learning_rate_of_zero_makes_buffers_that_are_saved(zero):
    module = register(system(), lr={"dt": zero, "A": zero})
    assert set(dict(module.named_buffers())) == {"inv_dt", "A_real", "A_imag", "P"}
    assert set(dict(module.named_parameters())) == {"B", "C"}
    assert len(module.state_dict()) == 6


@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_speaks_through_logging_and_not_on_the_terminal(verbose, caplog, capsys):
    with caplog.at_level(logging.INFO, logger="pararnn_s4"):
        register(system(), verbose=verbose)
    assert bool(caplog.records) == verbose
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("settings", [{"lr": {"dA": 1.0}}, {"wd": {"dA": 1.0}}])
def test_settings_for_unknown_parameters_are_refused(settings):
    with pytest.raises(ConfigError, match="names dA, but the parameters are"):
        register(system(), **settings)


def test_negative_settings_are_refused():
    with pytest.raises(ConfigError, match=r"lr of B cannot be negative, got -0\.1"):
        register(system(), lr={"B": -0.1})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("A", lambda tensor: tensor[:2]),
        ("B", lambda tensor: tensor[:, :2]),
        ("C", lambda tensor: tensor[:, :4]),
        ("C", lambda tensor: tensor[..., :1]),
        ("C", lambda tensor: tensor[0]),
        ("P", lambda tensor: tensor[:1]),
        ("inv_dt", lambda tensor: tensor[:2]),
        ("inv_dt", lambda tensor: tensor[:, 0]),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(name, change):
    tensors = system()
    tensors[name] = change(tensors[name])
    with pytest.raises(ShapeError, match=f"{name} must have shape"):
        register(tensors)


def test_systems_that_features_cannot_share_are_refused():
    tensors = system()
    with pytest.raises(ShapeError, match="H=7 features cannot share n_ssm=3"):
        register_ssm_params(nn.Module(), *tensors.values(), 7, 3, HALF, CHANNELS, RANK, False, "exp", "none", False, False, None)


def test_parameters_of_different_precision_are_refused():
    tensors = system()
    tensors["inv_dt"] = tensors["inv_dt"].float()
    with pytest.raises(DTypeError, match=r"must share a precision, got \['torch.float32', 'torch.float64'\]"):
        register(tensors)


@pytest.mark.parametrize("change", [lambda A: A.conj(), lambda A: A + 1], ids=["other-half", "unstable"])
def test_matrices_with_positive_parts_are_refused(change):
    tensors = system()
    tensors["A"] = change(tensors["A"])
    with pytest.raises(InputError, match="A must have real parts below 0"):
        register(tensors)


def test_a_missing_correction_is_refused_where_one_is_needed():
    tensors = system()
    tensors["P"] = None
    register(tensors, diag=True)
    with pytest.raises(ConfigError, match="not diagonal needs P"):
        register(tensors)


def test_a_complex_system_without_imaginary_parts_is_refused():
    module = register(system("diag-real"), is_real=True, diag=True)
    with pytest.raises(ConfigError, match="needs A_imag"):
        process_ssm_params(module.A_real, None, module.B, module.C, module.inv_dt)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_that_is_not_positive_is_refused(rate):
    with pytest.raises(ConfigError, match=f"must be positive, got {rate}"):
        processed(register(system()), rate=rate)
