"""The names that users of lrnnx and state-spaces know."""

import pytest
import torch

import pararnn_s4
from pararnn_s4 import functional


def test_naive_functions_take_arguments_in_the_order_of_the_reference(numerators, nodes, poles, drive):
    torch.testing.assert_close(functional.cauchy_naive(numerators, nodes, poles), pararnn_s4.cauchy(numerators, nodes, poles))
    torch.testing.assert_close(functional.log_vandermonde_naive(numerators, poles, 9), pararnn_s4.vandermonde(numerators, poles, 9))
    torch.testing.assert_close(
        functional.log_vandermonde_transpose_naive(drive, numerators, poles, drive.shape[-1]),
        pararnn_s4.vandermonde_transpose(drive, numerators, poles),
    )


def test_keops_functions_give_the_same_as_the_naive_ones(numerators, nodes, poles, drive, require):
    require("cauchy", "keops")
    torch.testing.assert_close(functional.cauchy_keops(numerators, nodes, poles), functional.cauchy_naive(numerators, nodes, poles))
    torch.testing.assert_close(functional.log_vandermonde_keops(numerators, poles, 9), functional.log_vandermonde_naive(numerators, poles, 9))
    torch.testing.assert_close(
        functional.log_vandermonde_transpose_keops(drive, numerators, poles, drive.shape[-1]),
        functional.log_vandermonde_transpose_naive(drive, numerators, poles, drive.shape[-1]),
    )


def test_conj_false_is_honoured(numerators, poles):
    one_sided = functional.log_vandermonde_naive(numerators, poles, 5, conj=False)
    assert one_sided.is_complex()
    torch.testing.assert_close(2 * one_sided.real, functional.log_vandermonde_naive(numerators, poles, 5))


def test_the_transposed_product_keeps_double_precision_beside_single_poles(drive, numerators, poles):
    mixed = functional.log_vandermonde_transpose_naive(drive, numerators, poles.to(torch.complex64), drive.shape[-1])
    assert mixed.dtype == torch.complex128


@pytest.mark.parametrize("op", ["cauchy", "vandermonde", "vandermonde_transpose"])
def test_the_kernel_that_is_handed_out_chooses_at_every_call(op, numerators, nodes, poles, drive):
    kernel = getattr(functional, f"get_{op}_kernel")()
    arguments = {
        "cauchy": (numerators, nodes, poles),
        "vandermonde": (numerators, poles, 9),
        "vandermonde_transpose": (drive, numerators, poles, drive.shape[-1]),
    }
    double = kernel(*arguments[op])
    narrow = [value.to(torch.complex64) if isinstance(value, torch.Tensor) else value for value in arguments[op]]
    torch.testing.assert_close(kernel(*narrow).to(double.dtype), double, rtol=1e-4, atol=1e-4)


def test_every_name_of_the_reference_is_at_the_top_of_the_package():
    for name in vars(functional):
        if name.startswith(("cauchy_", "log_", "get_")):
            assert getattr(pararnn_s4, name) is getattr(functional, name)
