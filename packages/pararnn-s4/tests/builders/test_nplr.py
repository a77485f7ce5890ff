"""The diagonalised HiPPO system against the dense one that it stands for."""
# ruff: noqa: N803, N806 -- the names of the literature and of the reference functions.

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError
from pararnn_s4 import nplr, rank_correction, transition

MEASURES = ["legs", "legt", "fourier"]
FREQUENCIES = {
    ("legs", 4): [0.5565011150837439, 4.603293007066849],
    ("legs", 8): [0.42748871228586033, 1.957794150902806, 5.354208515030873, 19.857410370970566],
    ("legs", 16): [
        0.3520179158886822,
        1.3719887819145042,
        2.8996682227634953,
        5.0900236297030395,
        8.36210453140726,
        13.83434181905225,
        25.62922643742366,
        80.96608092451346,
    ],
    ("legt", 8): [1.4718941079293058, 4.336314497002212, 9.243683453942246, 12.065828629706525],
    ("fourier", 8): [0.0, torch.pi, 2 * torch.pi, 3 * torch.pi],
}
# First four samples, last sample and sum of the kernel of 64 samples that reads the sum of the eight HiPPO coefficients.
KERNELS = {
    ("legs", "bilinear", 0.1): (
        [0.8000432849315682, -0.27177873915004314, 0.10254829594042858, 0.1608889609867263],
        -0.0002638682746015,
        1.0026871163239346,
    ),
    ("legs", "zoh", 0.1): (
        [0.5844459274933994, -0.021509716065201814, 0.12234482012834852, 0.10836507857022923],
        -0.00026384912676392,
        1.0026954298289241,
    ),
    ("legs", "bilinear", 0.01): (
        [0.18713197797610687, 0.13861150157081834, 0.10000291441576768, 0.0696682720531911],
        -0.0017156345872341,
        0.8019075319903137,
    ),
    ("legs", "zoh", 0.01): (
        [0.18623482192959914, 0.13800705390261214, 0.09962988869031707, 0.06947551675738428],
        -0.0017020484119616,
        0.801782901088907,
    ),
    ("legt", "bilinear", 0.01): (
        [0.1000216405508085, 0.08665989853109461, 0.07462148280581371, 0.06381387807658678],
        0.005395231547273921,
        0.759907829218299,
    ),
    ("fourier", "bilinear", 0.01): (
        [0.05189403277912938, 0.05077064741570912, 0.049534088675082154, 0.04819277664180368],
        0.006016669107884692,
        None,
    ),
}


def double(measure, N, **options):
    return nplr(measure, N, 2, torch.float64, **options)


def full(half):
    """Both halves of each conjugate pair, along the last dimension."""
    return torch.cat([half, half.conj()], dim=-1)


def dense_system(W, P, B, V):
    """Matrix, input vector and basis of the whole state."""
    P = full(P)
    return torch.diag(full(W)) - torch.einsum("rn,rm->nm", P, P.conj()), full(B), full(V)


def kernel(matrix, vector, output, *, method, dt, length):
    """Outputs of the discretised system to a unit impulse, one matrix product a sample."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    if method == "zoh":
        advance = torch.linalg.matrix_exp(dt * matrix)
        state = torch.linalg.solve(matrix, (advance - identity) @ vector)
    else:
        advance = torch.linalg.solve(identity - dt / 2 * matrix, identity + dt / 2 * matrix)
        state = torch.linalg.solve(identity - dt / 2 * matrix, dt * vector)
    samples = []
    for _ in range(length):
        samples.append((output @ state).real)
        state = advance @ state
    return torch.stack(samples)


@pytest.mark.parametrize(("measure", "N"), FREQUENCIES, ids=lambda value: str(value))
def test_frequencies_are_the_known_ones(measure, N):
    W, *_ = double(measure, N)
    torch.testing.assert_close(-W.imag.flip(0), torch.tensor(FREQUENCIES[measure, N], dtype=torch.float64), rtol=2e-14, atol=1e-14)
    assert torch.equal(W.real, torch.full((N // 2,), -0.5 if measure == "legs" else 0.0, dtype=torch.float64))


def test_extreme_frequencies_of_the_usual_state_size_are_the_known_ones():
    frequencies = -double("legs", 64)[0].imag
    torch.testing.assert_close(frequencies[0].item(), 1303.2738429811961, rtol=1e-14, atol=0)
    torch.testing.assert_close(frequencies[-1].item(), 0.26385693111133923, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gauge", ["input", "lapack"])
def test_moduli_of_the_input_vector_are_the_known_ones(gauge):
    moduli = double("legs", 8, gauge=gauge)[2].abs()
    expected = torch.tensor([5.155625523187303, 1.8438689105263795, 1.174959947250121, 0.7994635875459897], dtype=torch.float64)
    torch.testing.assert_close(moduli, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("gauge", ["input", "lapack"])
@pytest.mark.parametrize("N", [2, 4, 64, 256])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_diagonal_form_is_the_hippo_system_in_another_basis(measure, N, gauge):
    A, B = transition(measure, N)
    matrix, vector, V = dense_system(*double(measure, N, gauge=gauge))
    scale = A.abs().max().item()
    torch.testing.assert_close(V.mH @ V, torch.eye(N, dtype=V.dtype), rtol=0, atol=1e-14 * N)
    torch.testing.assert_close(V @ matrix @ V.mH, A.to(V.dtype), rtol=0, atol=1e-14 * N * scale)
    torch.testing.assert_close(V @ vector, B[:, 0].to(V.dtype), rtol=0, atol=1e-13 * N)


@pytest.mark.parametrize("N", [8, 256])
def test_single_precision_is_double_precision_rounded_once(N):
    for single, exact in zip(nplr("legs", N), nplr("legs", N, dtype=torch.float64), strict=True):
        assert single.dtype == torch.complex64
        assert torch.equal(single, exact.to(torch.complex64))


def test_rounding_before_the_diagonalisation_is_an_option_and_less_exact():
    exact = nplr("legs", 256, dtype=torch.float64)[0]
    rough = nplr("legs", 256, diagonalize_precision=False)[0]
    error = ((rough - exact).abs() / exact.abs()).max().item()
    assert 1e-6 < error < 1e-1


def test_the_low_rank_vector_of_legs_carries_half_the_square_of_the_state_size():
    P = full(double("legs", 16)[1])
    torch.testing.assert_close(P.abs().square().sum().item(), 16**2 / 2, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("measure", "method", "dt"), KERNELS, ids=lambda value: str(value))
def test_kernels_of_the_diagonal_form_are_the_known_ones(measure, method, dt):
    matrix, vector, V = dense_system(*double(measure, 8))
    output = torch.ones(8, dtype=V.dtype) @ V
    samples = kernel(matrix, vector, output, method=method, dt=dt, length=64)
    first, last, total = KERNELS[measure, method, dt]
    torch.testing.assert_close(samples[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(samples[-1].item(), last, rtol=0, atol=1e-12)
    assert total is None or abs(samples.sum().item() - total) < 1e-12


@pytest.mark.parametrize("N", [2, 8, 64])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_input_vector_is_real_and_positive_whatever_phases_the_eigensolver_returns(measure, N, monkeypatch):
    expected = double(measure, N)
    assert torch.equal(expected[2].imag, torch.zeros(N // 2, dtype=torch.float64))
    assert (expected[2].real > 0).all()
    eigh = torch.linalg.eigh

    def turned(matrix):
        values, vectors = eigh(matrix)
        return values, vectors * torch.exp(1j * torch.arange(N, dtype=torch.float64))

    monkeypatch.setattr(torch.linalg, "eigh", turned)
    for got, want in zip(double(measure, N), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-13 * N)


@pytest.mark.parametrize("measure", MEASURES)
def test_kernels_do_not_depend_on_the_gauge(measure):
    kernels = []
    for gauge in ("input", "lapack"):
        matrix, vector, V = dense_system(*double(measure, 8, gauge=gauge))
        kernels.append(kernel(matrix, vector, torch.ones(8, dtype=V.dtype) @ V, method="bilinear", dt=0.05, length=32))
    torch.testing.assert_close(*kernels, rtol=0, atol=1e-13)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_distribution_of_kernels_for_a_random_output_does_not_depend_on_the_gauge(measure):
    covariances = []
    for gauge in ("input", "lapack"):
        matrix, vector, _ = dense_system(*double(measure, 8, gauge=gauge))
        # For a complex normal C of the half state, samples are 2 Re(C . x), with covariance 2 Re(x_i . conj(x_j)).
        identity = torch.eye(8, dtype=matrix.dtype)
        advance = torch.linalg.solve(identity - 0.05 * matrix, identity + 0.05 * matrix)
        states = torch.stack([torch.linalg.matrix_power(advance, step) @ vector for step in range(16)])[:, :4]
        covariances.append(2 * (states @ states.mH).real)
    torch.testing.assert_close(*covariances, rtol=1e-12, atol=1e-12)


def test_nothing_is_clipped_unless_asked_for():
    _, P, B, V = double("legs", 64)
    torch.testing.assert_close(B.abs().max().item(), 40.75, rtol=0, atol=0.2)
    torch.testing.assert_close(full(V) @ full(B), transition("legs", 64)[1][:, 0].to(B.dtype), rtol=0, atol=1e-11)
    torch.testing.assert_close(B, 2**0.5 * P[0], rtol=0, atol=1e-12)


def test_a_clip_limits_moduli_and_leaves_the_rest_alone():
    _, _, free, _ = double("legs", 64)
    _, _, clipped, _ = double("legs", 64, B_clip=2.0)
    torch.testing.assert_close(clipped.abs(), free.abs().clamp(max=2.0), rtol=0, atol=1e-14)
    assert torch.equal(clipped[free.abs() < 2], free[free.abs() < 2])


def test_the_old_clip_of_imaginary_parts_goes_with_the_phases_of_the_eigensolver():
    free, clipped = (double("legs", 8, gauge="lapack", B_clip=clip)[2] for clip in (None, 2.0))
    assert torch.equal(clipped, torch.complex(free.real, free.imag.clamp(-2.0, 2.0)))


@pytest.mark.parametrize("N", [-2, 0, 1, 3, 5, 7])
@pytest.mark.parametrize("measure", MEASURES)
def test_state_sizes_that_are_no_pairs_are_refused(measure, N):
    with pytest.raises(ConfigError, match=f"must be even and at least 2, got N={N}"):
        nplr(measure, N, 2)


def test_the_rank_of_the_result_is_the_one_asked_for():
    P = nplr("legs", 8, 3)[1]
    assert P.shape == (3, 4)
    assert not P[1:].any()
    torch.testing.assert_close(full(P).abs().square().sum(-1)[0], rank_correction("legs", 8)[0].square().sum(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("options", "message"), [({"gauge": "phase"}, "gauge 'phase' is unknown"), ({"B_clip": 0.0}, "must be positive, got 0.0")])
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        nplr("legs", 8, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.int64])
def test_dtypes_without_a_complex_partner_are_refused(dtype):
    with pytest.raises(DTypeError, match=r"float32 or torch\.float64"):
        nplr("legs", 8, dtype=dtype)
