"""The FFT convolution against the sum written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pararnn.errors import ShapeError
from pararnn_s4.layers.convolution import convolve, fast_length


def written_out(x, forward, backward=None, lead=0):
    batch, copies, length = x.shape
    y = torch.zeros(batch, forward.shape[0], copies, length, dtype=x.dtype)
    for t in range(length):
        for lag in range(forward.shape[-1]):
            if t - lag >= 0:
                y[..., t] += forward[..., lag] * x[:, None, :, t - lag]
            if backward is not None and t + lead + lag < length:
                y[..., t] += backward[..., lag] * x[:, None, :, t + lead + lag]
    return y


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("lags", [1, 4, 9, 30], ids="K{}".format)
@pytest.mark.parametrize("length", [1, 2, 7, 16, 27], ids="L{}".format)
def test_it_is_the_causal_sum_for_any_two_lengths(length, lags):
    x, kernel = random(2, 3, length), random(2, 3, lags, seed=1)
    torch.testing.assert_close(convolve(x, kernel), written_out(x, kernel), rtol=0, atol=1e-13)


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("lags", [1, 5, 12, 40], ids="K{}".format)
@pytest.mark.parametrize("length", [1, 2, 9, 32], ids="L{}".format)
def test_backward_kernels_see_each_later_sample_once(length, lags, lead):
    x, forward, backward = random(2, 3, length), random(1, 3, lags, seed=1), random(1, 3, lags, seed=2)
    y = convolve(x, forward, backward, lead=lead)
    torch.testing.assert_close(y, written_out(x, forward, backward, lead), rtol=0, atol=1e-13)


def test_outputs_do_not_see_later_samples():
    x, kernel = random(1, 4, 64), random(1, 4, 64, seed=1)
    changed = x.clone()
    changed[..., 40:] = random(1, 4, 24, seed=2)
    torch.testing.assert_close(convolve(changed, kernel)[..., :40], convolve(x, kernel)[..., :40], rtol=0, atol=1e-14)


def test_the_layout_of_the_input_does_not_matter():
    x, kernel = random(2, 11, 3), random(1, 3, 11, seed=1)
    torch.testing.assert_close(convolve(x.transpose(1, 2), kernel), convolve(x.transpose(1, 2).contiguous(), kernel), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    x, kernel = random(1, 2, 500, dtype=torch.float32).to(dtype), random(1, 2, 500, dtype=torch.float32, seed=1).to(dtype)
    y = convolve(x, kernel)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), convolve(x.double(), kernel.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("two_sided", [False, True])
def test_first_and_second_derivatives_agree_with_differences(two_sided):
    tensors = [random(2, 2, 5), random(1, 2, 4, seed=1)] + [random(1, 2, 4, seed=2)] * two_sided
    tensors = [tensor.requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(convolve, tensors)
    assert torch.autograd.gradgradcheck(convolve, tensors)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 3, 0)], ids=str)
def test_kernels_have_gradients_of_zero_where_there_is_nothing_to_convolve(shape):
    x, forward, backward = (random(*size).requires_grad_() for size in (shape, (4, 3, 2), (4, 3, 2)))
    convolve(x, forward, backward).sum().backward()
    assert x.grad.shape == shape
    for kernel in (forward, backward):
        torch.testing.assert_close(kernel.grad, torch.zeros_like(kernel), rtol=0, atol=0)


def test_a_sequence_without_samples_has_no_outputs():
    assert convolve(torch.zeros(2, 3, 0), torch.zeros(4, 3, 5)).shape == (2, 4, 3, 0)


@pytest.mark.parametrize(
    ("x", "forward", "backward"),
    [((2, 3, 5), (1, 4, 5), None), ((3, 5), (1, 3, 5), None), ((2, 3, 5), (1, 3, 0), None), ((2, 3, 5), (1, 3, 5), (1, 3, 4))],
    ids=["copies", "dimensions", "no lags", "directions differ"],
)
def test_shapes_that_do_not_fit_are_named(x, forward, backward):
    with pytest.raises(ShapeError, match=r"\(1, [34], [05]\)"):
        convolve(torch.zeros(x), torch.zeros(forward), None if backward is None else torch.zeros(backward))


@given(st.integers(1, 1 << 20))
def test_padded_lengths_suffice_and_waste_at_most_a_quarter(minimum):
    length = fast_length(minimum)
    assert minimum <= length <= max(1.25 * minimum, 16)
    for prime in (2, 3, 5):
        while length % prime == 0:
            length //= prime
    assert length == 1
