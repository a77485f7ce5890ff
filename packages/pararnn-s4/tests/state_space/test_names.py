"""Options and backends that nothing answers to are refused when a state space is made, and a named backend is never ignored."""

import pytest
import torch

from pararnn.errors import BackendError, ConfigError
from pararnn_s4 import DPLRSSM, DiagonalSSM, ParaS4, ParaS4D


@pytest.mark.parametrize("kind", [DiagonalSSM, DPLRSSM])
def test_a_misspelt_option_is_named_with_the_closest_one(kind):
    with pytest.raises(ConfigError, match=rf"^{kind.__name__} has no option 'd_stat'; did you mean 'd_state'\?$"):
        kind(4, d_stat=8)


def test_every_misspelt_option_is_named():
    with pytest.raises(ConfigError, match=r"'B_scal'; did you mean 'B_scale'\?; .*'chanels'; did you mean 'channels'\?") as caught:
        DiagonalSSM(4, chanels=2, B_scal=1.0)
    assert caught.value.data["unknown"] == ("B_scal", "chanels")


def test_an_option_of_another_initialisation_is_refused_with_those_of_this_one():
    with pytest.raises(
        ConfigError, match=r"init='legs' of DPLRSSM has no use for real_scale; it takes B_clip, diagonalize_precision, gauge, generator"
    ):
        DPLRSSM(4, real_scale=2.0)


def test_a_generator_is_taken_by_every_initialisation():
    one, other = (DiagonalSSM(4, d_state=8, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.C, other.C)


@pytest.mark.parametrize(("kind", "names"), [(DiagonalSSM, "auto, naive, blocked, "), (DPLRSSM, "auto, naive, blocked, numba, ")])
def test_a_backend_that_nobody_offers_is_refused_with_the_names_there_are(kind, names):
    with pytest.raises(BackendError, match=rf"'cud'; did you mean 'cuda'\? there are {names}"):
        kind(4, backend="cud")


def test_a_backend_of_another_product_is_refused():
    with pytest.raises(BackendError, match="s4/vandermonde has no backend named 'numba'"):
        DiagonalSSM(4, backend="numba")


@pytest.mark.parametrize(("cell", "model"), [(ParaS4D, "DiagonalSSM"), (ParaS4, "DPLRSSM")])
def test_cells_refuse_what_their_state_spaces_refuse(cell, model):
    with pytest.raises(ConfigError, match=f"{model} has no option 'd_stat'"):
        cell(4, d_stat=8)
    with pytest.raises(BackendError, match="'cuda'"):
        cell(4, backend="cud")


@pytest.mark.parametrize(("backend", "method"), [("auto", "powers"), ("naive", "cauchy"), ("pararnn-s4:naive", "cauchy")])
def test_a_named_backend_means_cauchy_products(backend, method):
    assert DPLRSSM(4, d_state=8, backend=backend).method == method


def test_a_named_backend_serves_or_raises():
    with pytest.raises(BackendError, match="'cuda' was asked for and cannot serve s4/cauchy on cpu"):
        DPLRSSM(4, d_state=8, backend="cuda", device="cpu")(16)


def test_powers_refuse_a_backend():
    with pytest.raises(ConfigError, match=r"backend='naive' would do nothing; choose 'cauchy' or 'auto'"):
        DPLRSSM(4, method="powers", backend="naive")
