"""Diagonal plus low-rank initialisations against their formulas."""
# ruff: noqa: N803, N806 -- the names of the literature and of the reference functions.

import math

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError
from pararnn_s4 import dplr, nplr

SYNONYMS = [
    ("lin", "linear"),
    ("inv", "inverse"),
    ("inv2", "inverse2"),
    ("quad", "quadratic"),
    ("rand", "random"),
    ("legs", "hippo"),
    ("fourier", "fout"),
]
NAMES = [name for pair in SYNONYMS for name in pair] + ["real"]
FORMULAS = {
    "lin": lambda n, N: math.pi * n,
    "inv": lambda n, N: N / math.pi * (N / (2 * n + 1) - 1),
    "inv2": lambda n, N: N / math.pi * (N / (n + 1) - 1),
    "quad": lambda n, N: (2 * n + 1) ** 2 / math.pi,
}
# The first four samples and the last of 64, for B = 1, C_n = 1 + 0.5i n, dt = 0.1.
KERNELS = {
    ("lin", "zoh"): ([0.5365912781626732, 0.032765824736707305, -0.23511587644035015, -0.18389603547892208], -0.009155644490968198),
    ("lin", "bilinear"): ([0.5448512176864346, 0.07509695326008001, -0.2147900345884593, -0.224668639101759], 0.029729571506989905),
    ("inv", "zoh"): ([0.6465091124207735, 0.25840685884593917, 0.21901484737009608, 0.2714257340753121], -0.019418169195837835),
    ("inv", "bilinear"): ([0.6482966588693806, 0.32283312135282644, 0.13994838330791298, 0.17946174502082474], -0.029696815731222244),
    ("quad", "zoh"): ([0.4177479689285836, -0.08263006821533231, 0.07102180960609575, 0.24578927518530888], 0.023084947477418516),
}


def build(init, N=8, rank=1, H=1, **options):
    return dplr(init, N, rank, H, torch.float64, **options)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("N", [2, 6, 64])
@pytest.mark.parametrize("init", FORMULAS)
def test_frequencies_follow_their_formula(init, N):
    A, *_ = build(init, N, H=3)
    expected = torch.tensor([[-FORMULAS[init](n, N) for n in range(N // 2)]] * 3, dtype=torch.float64)
    torch.testing.assert_close(A.imag, expected, rtol=1e-15, atol=1e-14)
    assert (A.real == -0.5).all()


@pytest.mark.parametrize(("init", "method"), KERNELS, ids=lambda value: value)
def test_diagonal_kernels_are_the_known_ones(init, method):
    A, _, B, _ = (tensor.squeeze(0) for tensor in build(init))
    if method == "zoh":
        advance, drive = torch.exp(0.1 * A), torch.expm1(0.1 * A) / torch.where(A == 0, 1, A) * B
    else:
        advance, drive = (1 + 0.05 * A) / (1 - 0.05 * A), 0.1 * B / (1 - 0.05 * A)
    # The known kernels have their frequencies with a positive sign: the other half of each pair.
    advance, drive = advance.conj(), drive.conj()
    output = 1 + 0.5j * torch.arange(4)
    samples = torch.stack([2 * (output * drive * advance**step).sum().real for step in range(64)])
    first, last = KERNELS[init, method]
    torch.testing.assert_close(samples[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(samples[-1].item(), last, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("short", "long"), SYNONYMS)
def test_long_names_mean_the_same(short, long):
    for first, second in zip(build(short, generator=seeded()), build(long, generator=seeded()), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("init", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_every_initialisation_has_the_shapes_and_the_dtype_that_are_asked_for(init, dtype):
    tensors = dplr(init, 6, 2, 3, dtype, normalize=init != "lin")
    assert [tuple(tensor.shape) for tensor in tensors] == [(3, 3), (2, 3, 3), (3, 3), (3, 6, 3)]
    assert {tensor.dtype for tensor in tensors} == {dtype.to_complex()}
    assert all(tensor.is_contiguous() for tensor in tensors)
    assert (tensors[0].real <= 0).all()
    assert (tensors[0].imag <= 0).all()


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("B_init", ["constant", "legs", "random"])
@pytest.mark.parametrize("init", ["legs", "hippo"])
def test_legs_is_hippo_itself_whatever_b_init_says(init, B_init, rank):
    A, P, B, V = build(init, 16, rank, H=2, B_init=B_init)
    exact = nplr("legs", 16, rank, torch.float64)
    for copy in range(2):
        for got, want in zip((A[copy], P[:, copy], B[copy], V[copy]), exact, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-15)


def test_fourier_is_hippo_itself_once_its_decay_is_removed():
    A, P, B, V = build("fourier", 8, real_scale=0.0)
    for got, want in zip((A[0], P[:, 0], B[0], V[0]), nplr("fourier", 8, dtype=torch.float64), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-15)
    torch.testing.assert_close(build("fourier", 8)[0], A - 0.5, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_the_scale_of_the_correction_holds_for_hippo_too(scale):
    _, whole, *_ = build("legs")
    _, scaled, *_ = build("legs", P_scale=scale)
    torch.testing.assert_close(scaled, scale * whole, rtol=1e-15, atol=0)


def test_the_old_input_vector_of_legs_is_had_by_name():
    _, _, B, _ = build("legs", B_clip=2.0, gauge="lapack")
    assert torch.equal(B[0], nplr("legs", 8, dtype=torch.float64, B_clip=2.0, gauge="lapack")[2])


@pytest.mark.parametrize("init", ["lin", "inv", "quad"])
def test_the_input_vector_of_legs_goes_with_other_frequencies_in_their_order(init):
    A, P, B, _ = build(init, 16, B_init="legs")
    order = (-A[0].imag).argsort(descending=True)
    _, P_legs, B_legs, _ = nplr("legs", 16, dtype=torch.float64)
    assert torch.equal(B[0, order], B_legs)
    assert torch.equal(P[:, 0, order], P_legs)


def test_random_real_systems_have_distinct_decay_rates_up_to_half_the_state_size():
    A, *_ = build("real", 64, H=200, real_random=True, generator=seeded())
    decay = -A.real
    assert (decay > 0).all()
    assert decay.max() < 32
    assert decay.unique().numel() > 0.99 * decay.numel()
    torch.testing.assert_close(decay.mean().item(), 16.0, rtol=0.03, atol=0)


def test_real_systems_decay_at_whole_numbers_times_their_scale():
    A, *_ = build("real", real_scale=10.0)
    assert torch.equal(A, -10 * torch.arange(1, 5, dtype=torch.float64).to(torch.complex128).unsqueeze(0))


@pytest.mark.parametrize("init", ["rand", "real", "legs", "fourier"])
def test_random_orders_change_only_what_depends_on_the_order(init):
    plain, random = (build(init, imag_random=imag_random, generator=seeded())[0] for imag_random in (False, True))
    assert torch.equal(plain, random)


@pytest.mark.parametrize("init", ["lin", "inv", "inv2", "quad"])
def test_random_orders_never_give_a_frequency_of_the_other_sign(init):
    A, *_ = build(init, 8, H=2000, imag_random=True, generator=seeded())
    assert (A.imag <= 0).all()


@pytest.mark.parametrize("N", [2, 4, 6, 10, 12])
def test_alternating_input_vectors_alternate_for_every_state_size(N):
    *_, B, _ = build("lin", N, B_init="alternating")
    assert B[0].tolist() == [(-1) ** n for n in range(N // 2)]


@pytest.mark.parametrize(("B_init", "sign"), [("unit-cw", -1), ("unit-ccw", 1)])
def test_unit_input_vectors_are_exact_roots_of_unity(B_init, sign):
    *_, B, _ = build("lin", 64, B_init=B_init)
    expected = torch.tensor(
        [complex(math.cos(2 * math.pi * n / 64), sign * math.sin(2 * math.pi * n / 64)) for n in range(32)], dtype=torch.complex128
    )
    torch.testing.assert_close(B[0], expected, rtol=0, atol=1e-15)


def test_a_scale_of_the_input_vector_multiplies_it():
    assert (build("lin", B_scale=3.0)[2] == 3).all()


@pytest.mark.parametrize("init", ["lin", "legs"])
def test_normalised_systems_answer_a_constant_input_with_unit_variance(init):
    A, _, B, _ = build(init, 16, normalize=True)
    variance = 2 * (B / A).abs().square().sum(-1)
    torch.testing.assert_close(variance, torch.ones(1, dtype=torch.float64), rtol=1e-14, atol=0)


def test_normalising_a_system_that_never_forgets_is_refused():
    with pytest.raises(ConfigError, match="an entry of A is 0"):
        build("lin", real_scale=0.0, normalize=True)


def test_copies_of_a_random_system_differ_and_a_seed_repeats_them():
    first, again = (build("rand", 8, 2, 3, generator=seeded()) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
    assert first[0].imag.unique().numel() == 12
    assert first[1].real.unique().numel() == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "chebyshev"}, "init 'chebyshev' is unknown; choose one of lin, linear"),
        ({"init": "lin", "B_init": "ones"}, "B_init 'ones' is unknown; choose one of constant"),
        ({"init": "lin", "N": 5}, "must be even and at least 2, got N=5; pass N=6"),
        ({"init": "lin", "N": 0}, "must be even and at least 2, got N=0; pass N=2"),
        ({"init": "lin", "rank": 0}, "rank=0"),
        ({"init": "lin", "H": 0}, "H=0"),
        ({"init": "lin", "real_scale": -1.0}, "real_scale=-1.0"),
        ({"init": "lin", "B_random": True}, "pass B_init='random'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_arguments_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        dplr(**options)


def test_half_precision_is_refused():
    with pytest.raises(DTypeError, match=r"got torch\.bfloat16"):
        dplr("lin", dtype=torch.bfloat16)
