"""Every builder gives what was asked for: dtype, device, and the same numbers on each."""
# ruff: noqa: N806 -- the names of the literature and of the reference functions.

import pytest
import torch
from torch import nn

from pararnn_s4 import combination, dplr, init_dt, init_ssm_dplr, nplr, rank_correction, register_ssm_params, ssm, transition

BUILDERS = {
    "transition": lambda dtype, **options: transition("legs", 8, dtype=dtype, **options),
    "rank_correction": lambda dtype, **options: (rank_correction("fourier", 8, 2, dtype, **options),),
    "nplr": lambda dtype, **options: nplr("legt", 8, 2, dtype, **options),
    "dplr": lambda dtype, **options: dplr("rand", 8, 2, 3, dtype, B_init="random", **options),
    "ssm": lambda dtype, **options: ssm("diag-real", 8, 2, 3, dtype=dtype, **options),
    "combination": lambda dtype, **options: combination("all", 8, 2, 4, dtype=dtype, **options),
    "init_dt": lambda dtype, **options: (init_dt(4, 8, dtype=dtype, **options),),
    "init_ssm_dplr": lambda dtype, **options: init_ssm_dplr(8, 4, 2, 1, 1, "hippo", cdtype=dtype.to_complex(), **options),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", BUILDERS)
def test_builders_give_the_dtype_that_is_asked_for(name, dtype):
    real = name in ("transition", "rank_correction", "init_dt")
    assert {tensor.dtype for tensor in BUILDERS[name](dtype)} == {dtype if real else dtype.to_complex()}


@pytest.mark.parametrize("name", BUILDERS)
def test_builders_put_their_results_on_the_device_that_is_asked_for(name):
    assert {tensor.device.type for tensor in BUILDERS[name](torch.float32, device="meta")} == {"meta"}


@pytest.mark.parametrize("name", BUILDERS)
def test_builders_follow_the_default_device(name):
    with torch.device("meta"):
        results = BUILDERS[name](torch.float32)
    assert {tensor.device.type for tensor in results} == {"meta"}


def test_parameters_can_be_registered_without_memory():
    module = nn.Module()
    with torch.device("meta"):
        A, P, B, C = init_ssm_dplr(8, 4, 2, 1, 1, "hippo")
        register_ssm_params(module, A, B, C, init_dt(4, 8), P, 4, 2, 4, 1, 1, False, "exp", "none", False, False, None)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUILDERS)
def test_builders_give_the_same_numbers_on_the_gpu(name):
    torch.manual_seed(0)
    expected = BUILDERS[name](torch.float32)
    torch.manual_seed(0)
    for got, want in zip(BUILDERS[name](torch.float32, device="cuda"), expected, strict=True):
        assert got.device.type == "cuda"
        assert torch.equal(got.cpu(), want)
