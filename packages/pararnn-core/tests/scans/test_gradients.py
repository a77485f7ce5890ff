"""Gradients against autograd through the walk: of maps, terms and initial state, of the final state alone, and of gradients."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pararnn.scans
from pararnn.structures.diagonal import Diagonal


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 33, 64, 129], ids="T{}".format)
def test_gradients_equal_those_of_the_walk(scan, structure, recurrence, same_gradients, length, reverse):
    same_gradients(scan, recurrence(structure, length=length, scale=0.8), reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", [1, 2, 33], ids="T{}".format)
def test_gradients_without_an_initial_state_equal_those_of_the_walk(scan, structure, recurrence, same_gradients, length, reverse):
    same_gradients(scan, recurrence(structure, length=length, scale=0.8, initial=False), reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", [1, 2, 3, 9, 20], ids="T{}".format)
def test_gradients_of_the_final_state_alone_equal_those_of_the_walk(scan, structure, recurrence, same_gradients, length, reverse):
    case = recurrence(structure, length=length, scale=0.8)
    weight = torch.zeros_like(case.bias)
    weight[:, 0 if reverse else -1] = 1
    same_gradients(scan, case, weight=weight, reverse=reverse)


@pytest.mark.parametrize("length", [1, 2, 3, 8], ids="T{}".format)
def test_the_final_state_depends_on_a_decay_by_all_later_ones(scan, recurrence, length):
    case = recurrence(rows=1, length=length, size=1).requiring_grad()
    states = scan(case.transition, case.bias, case.initial)
    states[:, -1].sum().backward()
    decay, start = case.transition.diagonal.detach().flatten(), case.initial.detach().flatten()
    before = torch.cat((start, states.detach().flatten()[:-1]))
    later = torch.stack([decay[step + 1 :].prod() for step in range(length)])
    torch.testing.assert_close(case.transition.diagonal.grad.flatten(), later * before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(case.initial.grad.flatten(), decay.prod().reshape(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [255, 257, 300], ids="T{}".format)
def test_lengths_around_256_have_the_gradients_of_the_walk(scan, recurrence, same_gradients, length):
    same_gradients(scan, recurrence(rows=1, length=length, size=2, scale=0.8))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_complex_gradients_equal_those_of_the_walk(scan, structure, recurrence, same_gradients, reverse):
    same_gradients(scan, recurrence(structure, length=13, dtype=torch.complex128, scale=0.8), reverse=reverse)


def test_real_maps_of_complex_terms_have_real_gradients(scan, recurrence, tolerance):
    decay = recurrence(length=13).transition.diagonal
    bias = recurrence(length=13, dtype=torch.complex128).bias
    real, widened = decay.clone().requires_grad_(), decay.clone().requires_grad_()
    scan(Diagonal(real), bias).abs().sum().backward()
    scan(Diagonal(widened.to(torch.complex128)), bias).abs().sum().backward()
    assert real.grad.dtype == torch.float64
    torch.testing.assert_close(real.grad, widened.grad, **tolerance["gradients"])


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)], ids=str)
def test_only_what_requires_a_gradient_gets_one(scan, structure, recurrence, oracle, tolerance, wanted):
    case = recurrence(structure, length=9)
    tensors = [tensor.clone().requires_grad_(needs) for tensor, needs in zip(case.tensors, wanted, strict=True)]
    others = [tensor.clone().requires_grad_(needs) for tensor, needs in zip(case.tensors, wanted, strict=True)]
    found, walked = case.rebuilt(tensors), case.rebuilt(others)
    scan(found.transition, found.bias, found.initial).square().sum().backward()
    oracle(walked.transition, walked.bias, walked.initial).square().sum().backward()
    for one, other, needs in zip(tensors, others, wanted, strict=True):
        assert (one.grad is not None) == needs
        if needs:
            torch.testing.assert_close(one.grad, other.grad, **tolerance["gradients"])


def test_nothing_that_requires_no_gradient_makes_a_graph(scan, recurrence):
    case = recurrence()
    assert not scan(case.transition, case.bias, case.initial).requires_grad
    case = case.requiring_grad()
    with torch.no_grad():
        assert not scan(case.transition, case.bias, case.initial).requires_grad
    with torch.inference_mode():
        assert scan(case.transition, case.bias, case.initial).is_inference()


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 9)], ids=str)
def test_shared_maps_collect_the_gradients_of_all_their_uses(scan, structure, recurrence, oracle, tolerance, shape):
    case = recurrence(structure, length=9)
    small = [leaf[: shape[0], : shape[1]].clone() for leaf in case.transition.leaves()]
    one, other = ([leaf.clone().requires_grad_() for leaf in small] for _ in range(2))
    kind = type(case.transition)
    scan(kind.from_leaves(*one), case.bias, case.initial).square().sum().backward()
    full = kind.from_leaves(*other).map(lambda leaf: leaf.expand(2, 9, *leaf.shape[2:]))
    oracle(full, case.bias, case.initial).square().sum().backward()
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **tolerance["gradients"])


def test_one_tensor_in_two_places_collects_both_gradients(scan, oracle, tolerance):
    values = torch.linspace(0.1, 0.9, 14, dtype=torch.float64).reshape(1, 7, 2)
    one, other = values.clone().requires_grad_(), values.clone().requires_grad_()
    scan(Diagonal(one), one, one[:, 0]).square().sum().backward()
    oracle(Diagonal(other), other, other[:, 0]).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad, **tolerance["gradients"])


def test_lazily_conjugated_inputs_have_the_gradients_of_the_walk(scan, recurrence, oracle, tolerance):
    case = recurrence(length=9, dtype=torch.complex128)
    one, other = case.requiring_grad(), case.requiring_grad()
    weight = case.bias.conj()
    for found, run in ((one, scan), (other, oracle)):
        turned = found.rebuilt([tensor.conj() for tensor in found.tensors])
        run(turned.transition, turned.bias, turned.initial).backward(weight)
    for mine, theirs in zip(one.tensors, other.tensors, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **tolerance["gradients"])


def test_expanded_and_strided_cotangents_are_taken(scan, structure, recurrence, same_gradients):
    case = recurrence(structure, length=9, scale=0.8)
    same_gradients(scan, case, weight=torch.ones((), dtype=torch.float64).expand(2, 9, 6))
    same_gradients(scan, case, weight=torch.randn(6, 9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).permute(2, 1, 0))


def test_products_that_overflow_over_a_costate_of_zero_do_no_harm(scan, same_gradients, recurrence):
    case = recurrence(rows=1, length=200, size=2)
    case.transition.diagonal.fill_(1e4)
    case.bias.zero_()
    case.initial.zero_()
    weight = torch.zeros_like(case.bias)
    weight[:, :10] = 1
    same_gradients(scan, case, weight=weight)


def test_a_map_that_is_never_read_has_no_gradient(scan, structure, recurrence):
    case = recurrence(structure, length=20, initial=False, scale=0.8)
    for leaf in case.transition.leaves():
        leaf[:, 0] = float("inf")
    case = case.requiring_grad()
    gradients = torch.autograd.grad(scan(case.transition, case.bias).sum(), case.tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(not gradient[:, 0].any() for gradient in gradients[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_in_lower_precision_are_close_to_those_in_float64(scan, recurrence, oracle, dtype, tolerance):
    case = recurrence(length=65, scale=0.3, dtype=torch.float32).to(dtype)
    found, exact = case.requiring_grad(), case.to(torch.float64).requiring_grad()
    scan(found.transition, found.bias, found.initial).float().square().sum().backward()
    # The loss sees states rounded to the lower precision, as the one it is compared with does.
    oracle(exact.transition, exact.bias, exact.initial).to(dtype).float().square().sum().backward()
    for mine, theirs in zip(found.tensors, exact.tensors, strict=True):
        assert mine.grad.dtype == dtype
        torch.testing.assert_close(mine.grad.double(), theirs.grad, **tolerance["gradients"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_derivatives_of_derivatives_agree_with_finite_differences(structure, recurrence, chunks, dtype, reverse):
    for chunk, initial in itertools.product((None, 2), (True, False)):
        chunks(chunk)
        case = recurrence(structure, rows=1, length=5, size=6 if structure == "blocks of 3" else 2, dtype=dtype, initial=initial).requiring_grad()

        def run(*tensors, case=case):
            now = case.rebuilt(tensors)
            return pararnn.scans.scan(now.transition, now.bias, now.initial, reverse=reverse, backend="torch")

        assert gradcheck(run, case.tensors, fast_mode=True)
        assert gradgradcheck(run, case.tensors, fast_mode=True)


def test_double_backward_equals_that_of_the_walk(scan, structure, recurrence, oracle, tolerance):
    def curvature(run, case):
        states = run(case.transition, case.bias, case.initial)
        first = torch.autograd.grad(states.pow(3).sum(), case.tensors, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), case.tensors)

    case = recurrence(structure, length=9, scale=0.7)
    for one, other in zip(curvature(scan, case.requiring_grad()), curvature(oracle, case.requiring_grad()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_a_map_edited_between_forward_and_backward_is_noticed(scan, recurrence):
    case = recurrence().requiring_grad()
    decay = case.transition.diagonal * 1
    states = scan(Diagonal(decay), case.bias, case.initial)
    decay.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()
