"""The laws of `pararnn.structures.base`, for random members of every installed structure, with dense matrices as the oracle."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pararnn.registry import installed
from pararnn.structures.base import Structure

NAMES = tuple(installed().structures)
# A state of this size suits blocks of 1, 2, 3, 4 and 6 slots.
SIZE = 12
EXACT = {"rtol": 1e-11, "atol": 1e-11}

leads = st.sampled_from([(), (1,), (3,), (0,), (2, 3), (2, 1, 2), (2, 0)])
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float64, torch.complex128])
pytestmark = pytest.mark.parametrize("name", NAMES)
law = settings(max_examples=15, deadline=None, database=None, derandomize=True)


def member(name, lead, seed, dtype=torch.float64):
    return installed().structures[name].spec.load_example()(lead, SIZE, seed=seed, dtype=dtype)


def vector(lead, seed, dtype=torch.float64):
    return torch.randn(*lead, SIZE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(one, other):
    torch.testing.assert_close(one, other, **EXACT)


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_leaves_hold_the_whole_structure(name, lead, seed, dtype):
    maps = member(name, lead, seed, dtype)
    again = type(maps).from_leaves(*maps.leaves())
    assert type(again) is type(maps)
    assert isinstance(maps, Structure)
    assert torch.equal(again.to_dense(), maps.to_dense())
    assert all(leaf.shape[: len(lead)] == lead and leaf.dtype == dtype for leaf in maps.leaves())


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_dense_form_is_square_in_the_state(name, lead, seed, dtype):
    assert member(name, lead, seed, dtype).to_dense().shape == (*lead, SIZE, SIZE)


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_compose_multiplies_the_dense_forms(name, lead, seed, dtype):
    late, early = member(name, lead, seed, dtype), member(name, lead, seed + 1, dtype)
    composed = late.compose(early)
    assert type(composed) is type(late)
    close(composed.to_dense(), late.to_dense() @ early.to_dense())


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_apply_multiplies_by_the_dense_form(name, lead, seed, dtype):
    maps, state = member(name, lead, seed, dtype), vector(lead, seed + 1, dtype)
    close(maps.apply(state), (maps.to_dense() @ state.unsqueeze(-1)).squeeze(-1))


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_apply_add_is_apply_then_add_also_into_a_given_tensor(name, lead, seed, dtype):
    maps, state, bias = member(name, lead, seed, dtype), vector(lead, seed + 1, dtype), vector(lead, seed + 2, dtype)
    expected = maps.apply(state) + bias
    close(maps.apply_add(state, bias), expected)
    out = torch.full_like(bias, math.nan)
    close(maps.apply_add(state, bias, out=out), expected)
    close(out, expected)


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_applying_a_composition_applies_one_after_the_other(name, lead, seed, dtype):
    late, early, state = member(name, lead, seed, dtype), member(name, lead, seed + 1, dtype), vector(lead, seed + 2, dtype)
    close(late.compose(early).apply(state), late.apply(early.apply(state)))


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_composition_is_associative(name, lead, seed, dtype):
    last, middle, first = (member(name, lead, seed + shift, dtype) for shift in range(3))
    close(last.compose(middle).compose(first).to_dense(), last.compose(middle.compose(first)).to_dense())


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_transpose_transposes_the_dense_form_and_reverses_products(name, lead, seed, dtype):
    late, early = member(name, lead, seed, dtype), member(name, lead, seed + 1, dtype)
    close(late.transpose().to_dense(), late.to_dense().mT)
    close(late.compose(early).transpose().to_dense(), early.transpose().compose(late.transpose()).to_dense())


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_adjoint_is_the_conjugate_transpose(name, lead, seed, dtype):
    maps = member(name, lead, seed, dtype)
    close(maps.adjoint().to_dense(), maps.to_dense().mH)


@law
@given(lead=leads, seed=seeds, dtype=dtypes)
def test_leaf_cotangents_are_those_of_autograd_through_the_dense_form(name, lead, seed, dtype):
    maps, state, cotangent = member(name, lead, seed, dtype), vector(lead, seed + 1, dtype), vector(lead, seed + 2, dtype)
    leaves = [leaf.clone().requires_grad_() for leaf in maps.leaves()]
    product = (type(maps).from_leaves(*leaves).to_dense() @ state.unsqueeze(-1)).squeeze(-1)
    for found, expected in zip(maps.leaf_cotangents(state, cotangent), torch.autograd.grad(product, leaves, cotangent), strict=True):
        close(found, expected)


@law
@given(lead=leads, seed=seeds)
def test_linearize_gives_the_value_and_the_jacobian_of_a_step_of_its_form(name, lead, seed):
    maps, state = member(name, lead, seed), vector(lead, seed + 1)

    def step(at):
        # The inner function acts on each channel alone, so the derivative has the form of the maps.
        return maps.apply(torch.sin(at)) + at.pow(2)

    value, jacobian = type(maps).linearize(step, state)
    close(value, step(state))
    close(type(maps).of(step, state).to_dense(), jacobian.to_dense())
    expected = maps.to_dense() * state.cos().unsqueeze(-2) + torch.diag_embed(2 * state)
    close(jacobian.to_dense(), expected)


@law
@given(lead=leads, seed=seeds, bad=st.sampled_from([math.inf, -math.inf, math.nan]))
def test_where_keeps_or_zeroes_whole_maps_even_non_finite_ones(name, lead, seed, bad):
    maps = member(name, lead, seed)
    keep = torch.rand(lead, generator=torch.Generator().manual_seed(seed)) < 0.5
    spoilt = type(maps).from_leaves(*(torch.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, bad) for leaf in maps.leaves()))
    expected = torch.where(keep[..., None, None], maps.to_dense(), 0)
    close(spoilt.where(keep).to_dense(), expected)
    assert torch.equal(spoilt.is_finite(len(lead)), keep)


@law
@given(seed=seeds, dtype=dtypes)
def test_members_broadcast_over_leading_dimensions(name, seed, dtype):
    shared, states = member(name, (1,), seed, dtype), vector((4,), seed + 1, dtype)
    close(shared.apply(states), (shared.to_dense() @ states.unsqueeze(-1)).squeeze(-1))
    close(shared.compose(member(name, (4,), seed, dtype)).to_dense(), shared.to_dense() @ member(name, (4,), seed, dtype).to_dense())


def test_costs_are_positive_and_composing_costs_no_less_than_applying(name):
    compose, apply = type(member(name, (), 0)).cost(SIZE)
    assert 0 < apply <= compose


def test_detaching_cuts_the_graph_and_keeps_the_numbers(name):
    maps = member(name, (2,), 0)
    attached = maps.map(lambda leaf: leaf.clone().requires_grad_())
    assert not any(leaf.requires_grad for leaf in attached.detach().leaves())
    assert torch.equal(attached.detach().to_dense(), maps.to_dense())


def test_the_scan_of_a_structure_equals_its_walk(name):
    from pararnn.scans import scan
    from pararnn.scans.reference import walk

    for length in (1, 7, 600):
        maps, bias, start = member(name, (1, length), 0), vector((1, length), 1), vector((1,), 2)
        maps = maps.map(lambda leaf: 0.3 * leaf)
        close(scan(maps, bias, start), walk(maps, bias, start))
