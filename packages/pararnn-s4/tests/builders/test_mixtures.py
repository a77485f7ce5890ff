"""Initialisations by name."""
# ruff: noqa: N806 -- the names of the literature and of the reference functions.

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_s4 import combination, dplr, nplr, ssm
from pararnn_s4.initialisation.mixtures import combinations
from pararnn_s4.initialisation.spectra import INITS

KINDS = ["legs", "legt", "fourier", "fout", "diag", "dplr", *(f"{family}-{name}" for family in ("diag", "dplr") for name in INITS)]


@pytest.mark.parametrize("init", KINDS)
def test_every_name_gives_its_shapes(init):
    tensors = ssm(init, 8, 2, 3)
    assert [tuple(tensor.shape) for tensor in tensors] == [(3, 4), (2, 3, 4), (3, 4), (3, 8, 4)]
    assert all(tensor.isfinite().all() for tensor in map(torch.view_as_real, tensors))


@pytest.mark.parametrize("init", [kind for kind in KINDS if kind.startswith("diag")])
def test_diagonal_systems_have_no_correction(init):
    assert not ssm(init, 8, 1, 2)[1].any()


def test_measures_are_copied():
    copies = ssm("legs", 8, 1, 3)
    W, P, B, V = nplr("legs", 8)
    for got, want in zip(copies, (W.expand(3, 4), P.unsqueeze(1).expand(1, 3, 4), B.expand(3, 4), V.expand(3, 8, 4)), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["diag", "dplr"])
def test_a_family_alone_means_hippo(name):
    for got, want in zip(ssm(name, 8, 1, 1), ssm(f"{name}-hippo", 8, 1, 1), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    "init", ["diagonal-lin", "diag-lin-foo", "diag-", "dplr-foo", "diag_lin", "-lin", "", "LegS", "hippo", "chebyshev", "diag-legt"]
)
def test_names_that_do_not_parse_are_refused(init):
    with pytest.raises(ConfigError, match=f"initialisation {init!r} is unknown; choose a measure"):
        ssm(init, 8, 1, 1)


@pytest.mark.parametrize(
    ("init", "argument"),
    [("legs", "imag_scale"), ("legs", "B_init"), ("diag-lin", "P_scale"), ("dplr-lin", "diagonalize_precision"), ("legs", "typo")],
)
def test_arguments_without_a_use_are_refused(init, argument):
    with pytest.raises(ConfigError, match=f"init '{init}' has no use for {argument}"):
        ssm(init, 8, 1, 1, **{argument: 1.0})


@pytest.mark.parametrize("inits", [*combinations, "legs", ["dplr-inv", "fout"], ("diag-quad",)], ids=str)
def test_mixtures_are_shared_out_in_order(inits):
    names = combinations.get(inits, [inits]) if isinstance(inits, str) else list(inits)
    mixed = combination(inits, 8, 1, 2 * len(names), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    for position, name in enumerate(names):
        A, P, B, V = ssm(name, 8, 1, 2, generator=generator)
        copies = slice(2 * position, 2 * position + 2)
        for got, want in zip((mixed[0][copies], mixed[1][:, copies], mixed[2][copies], mixed[3][copies]), (A, P, B, V), strict=True):
            assert torch.equal(got, want)


def test_arguments_of_a_mixture_go_to_the_kinds_that_take_them():
    A, _, B, _ = combination("all", 8, 1, 4, imag_scale=2.0, B_clip=1.0)
    assert torch.equal(A[0], nplr("legs", 8)[0])
    assert torch.equal(A[3], dplr("lin", 8, imag_scale=2.0)[0][0])
    torch.testing.assert_close(B[:2].abs().max().item(), 1.0, rtol=1e-6, atol=0)


def test_an_argument_that_no_kind_of_a_mixture_takes_is_refused():
    with pytest.raises(ConfigError, match="none of diag-inv, diag-lin has a use for P_scale"):
        combination("diag", 8, 1, 2, P_scale=1.0)


@pytest.mark.parametrize(("inits", "copies"), [("hippo", 3), ("all", 6), ("legs", 0)])
def test_numbers_of_systems_that_cannot_be_shared_out_are_refused(inits, copies):
    with pytest.raises(ConfigError, match=f"{copies} systems cannot be shared out evenly"):
        combination(inits, 8, 1, copies)


def test_an_empty_list_of_kinds_is_refused():
    with pytest.raises(ConfigError, match="list of initialisations is empty"):
        combination([], 8, 1, 2)


def test_mixing_a_measure_of_rank_two_needs_that_rank():
    assert combination(["legt", "legs"], 8, 2, 2)[1].shape == (2, 2, 4)
    with pytest.raises(ConfigError, match="correction of rank 2, got rank=1"):
        combination(["legt", "legs"], 8, 1, 2)
