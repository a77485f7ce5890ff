"""The parameters that a layer starts with."""
# ruff: noqa: N806 -- the names of the literature and of the reference functions.

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError
from pararnn_s4 import combination, init_ssm_dplr

HALF = 4


@pytest.mark.parametrize("cdtype", [torch.complex64, torch.complex128], ids=["complex64", "complex128"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("init", ["legs", "legt", "fourier", "hippo", "diag", "all", "dplr-legs", "diag-real"])
def test_all_parameters_have_the_dtype_and_the_shapes_that_are_asked_for(init, deterministic, cdtype):
    A, P, B, C = init_ssm_dplr(8, 8, 4, 3, 2, init, deterministic, cdtype)
    assert [tuple(tensor.shape) for tensor in (A, P, B, C)] == [(4, HALF), (2, 4, HALF), (4, HALF), (3, 8, HALF)]
    assert {tensor.dtype for tensor in (A, P, B, C)} == {cdtype}


def test_systems_are_those_of_the_mixture():
    A, P, B, _ = init_ssm_dplr(8, 8, 4, 1, 1, "hippo", cdtype=torch.complex128)
    for got, want in zip((A, P, B), combination("hippo", 8, 1, 4, dtype=torch.float64), strict=False):
        assert torch.equal(got, want)


@pytest.mark.parametrize("frequency", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("init", ["legs", "dplr-legs"])
def test_a_deterministic_output_reads_the_first_coefficient_which_decays_at_rate_one(init, frequency):
    A, P, B, C = init_ssm_dplr(8, 4, 2, 2, 1, init, deterministic=True, cdtype=torch.complex128)
    A, P, B = (torch.cat([half, half.conj()], dim=-1)[..., 0, :] for half in (A, P, B))
    resolvent = torch.linalg.inv(frequency * torch.eye(8) - torch.diag(A) + P.mT @ P.conj())
    transfer = 2 * (C.conj() * (resolvent @ B)[:HALF]).sum(-1).real
    torch.testing.assert_close(transfer, torch.full((2, 4), 1 / (frequency + 1), dtype=torch.float64), rtol=1e-13, atol=0)


def test_features_share_systems_in_turn():
    _, _, _, C = init_ssm_dplr(8, 4, 2, 1, 1, "hippo", deterministic=True)
    assert torch.equal(C[:, 0], C[:, 2])
    assert torch.equal(C[:, 1], C[:, 3])
    assert not torch.equal(C[:, 0], C[:, 1])


def test_random_outputs_have_unit_variance_and_random_phases():
    *_, C = init_ssm_dplr(64, 128, 1, 2, 1, "legs", generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(C.abs().square().mean().item(), 1.0, rtol=0.05, atol=0)
    assert C.square().mean().abs() < 0.05


def test_a_seed_repeats_all_parameters():
    first, again = (init_ssm_dplr(8, 4, 4, 1, 1, "dplr-rand", generator=torch.Generator().manual_seed(3)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


def test_arguments_of_the_initialisation_arrive():
    A, *_ = init_ssm_dplr(8, 4, 4, 1, 1, "diag-lin", imag_scale=2.0)
    assert torch.equal(A[0].imag, combination("diag-lin", 8, 1, 1)[0][0].imag * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 6, 4, 1, 1, "legs"), "H=6 features cannot share n_ssm=4 systems evenly"),
        ((8, 6, 0, 1, 1, "legs"), "n_ssm=0"),
        ((8, 6, 2, 0, 1, "legs"), "channels=0"),
        ((7, 6, 2, 1, 1, "legs"), "got N=7"),
    ],
    ids=["n_ssm", "no-system", "no-channel", "odd"],
)
def test_numbers_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        init_ssm_dplr(*arguments)


def test_a_second_dtype_is_refused():
    with pytest.raises(ConfigError, match="cdtype decides"):
        init_ssm_dplr(8, 4, 4, 1, 1, "legs", dtype=torch.float64)


def test_a_real_dtype_of_the_parameters_is_refused():
    with pytest.raises(DTypeError, match=r"got torch\.float32"):
        init_ssm_dplr(8, 4, 4, 1, 1, "legs", cdtype=torch.float32)
