"""Diagonal plus low-rank models against dense ones, by both algorithms."""

import copy

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_s4.hippo.nplr import nplr
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.dplr import DPLRSSM
from pararnn_s4.state_space.dplr_system import SampledDPLR

METHODS = ["powers", "cauchy"]
FORMS = {
    "legs": {},
    "legt": {"init": "legt", "rank": 2},
    "fout": {"init": "fout"},
    "rank-three": {"init": "legt", "rank": 3},
    "random-low-rank": {"init": "dplr-inv", "rank": 2},
    "real": {"is_real": True, "init": "dplr-real", "rank": 2},
    "a-time-step-for-each-state": {"dt_tie": False},
    "three-channels-and-shared-systems": {"channels": 3, "n_ssm": 2},
    "no-low-rank": {"init": "diag-lin"},
    "slow-sampling": {"dt_min": 1.0, "dt_max": 10.0},
}


def ssm_of(form, d_model=4, d_state=8, **options):
    return DPLRSSM(d_model, d_state=d_state, **{"dtype": torch.float64, **FORMS[form], **options})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 2, 3, 33, 150])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_equals_the_powers_of_the_dense_transition(form, length, method, dense, relative):
    ssm = ssm_of(form, method=method)
    kernel = ssm(length)
    assert kernel.shape == (ssm.channels, 4, length)
    assert relative(kernel, dense(ssm).kernel(length)) < 1e-11


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["legs", "legt", "fout"])
def test_long_kernels_of_large_states_keep_their_digits(form, method, dense, relative):
    ssm = ssm_of(form, d_model=1, d_state=64, method=method)
    assert relative(ssm(16384), dense(ssm).kernel(16384)) < 1e-11


@pytest.mark.parametrize(
    ("measure", "rank", "dt", "first", "last", "total"),
    [
        (
            "legs",
            1,
            0.1,
            [0.8000432849315682, -0.27177873915004314, 0.10254829594042858, 0.1608889609867263],
            -0.0002638682746015,
            1.0026871163239346,
        ),
        (
            "legs",
            1,
            0.01,
            [0.18713197797610687, 0.13861150157081834, 0.10000291441576768, 0.0696682720531911],
            -0.0017156345872341,
            0.8019075319903137,
        ),
        (
            "legt",
            2,
            0.01,
            [0.1000216405508085, 0.08665989853109461, 0.07462148280581371, 0.06381387807658678],
            0.005395231547273921,
            0.759907829218299,
        ),
        ("fout", 1, 0.01, [0.05189403277912938, 0.05077064741570912, 0.049534088675082154, 0.04819277664180368], 0.006016669107884692, None),
    ],
)
def test_kernels_have_their_known_values(measure, rank, dt, first, last, total):
    rates, low_rank, drive, basis = nplr(measure, 8, rank, torch.float64)
    # All ones in the basis of the HiPPO matrix.
    output = basis.sum(0)[None, None]
    model = Continuous(rates[None], drive[None], output, torch.full((1, 1), dt, dtype=torch.float64), low_rank[:, None])
    for method in METHODS:
        kernel = SampledDPLR(model, dtype=torch.float64, method=method, backend="auto").kernel(64)[0, 0]
        torch.testing.assert_close(kernel[:4], torch.tensor(first, dtype=torch.float64), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(kernel[63], torch.tensor(last, dtype=torch.float64), rtol=0, atol=1e-13)
        if total is not None:
            torch.testing.assert_close(kernel.sum(), torch.tensor(total, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("length", [1024, 16384])
@pytest.mark.parametrize(("form", "cauchy_limit"), [("legs", 2e-6), ("legt", 3e-4), ("fout", 5e-6)])
def test_single_precision_kernels_keep_their_digits(form, cauchy_limit, length, relative):
    ssm = ssm_of(form, d_model=4, d_state=64, dtype=torch.float32)
    expected = copy.deepcopy(ssm).double()(length)
    assert relative(ssm(length), expected) < 1e-6
    ssm.method = "cauchy"
    assert relative(ssm(length), expected) < cauchy_limit


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 2e-6)], ids=str)
@pytest.mark.parametrize("dt", [1e-2, 1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("form", ["legs", "legt", "fout"])
def test_kernels_much_shorter_than_the_memory_keep_their_digits_by_cauchy_products(form, dt, dtype, limit, relative):
    ssm = ssm_of(form, d_state=16, dtype=dtype, method="cauchy", dt_min=dt, dt_max=dt)
    expected = copy.deepcopy(ssm).double()
    expected.method = "powers"
    assert relative(ssm(64), expected(64)) < limit


@pytest.mark.parametrize(("length", "limit"), [(64, 5e-4), (1024, 1e-3), (16384, 2e-3)])
def test_cauchy_products_keep_three_digits_where_poles_meet_nodes(length, limit, relative):
    # The periods of FouT divide a second, and the nodes of the transform the length of the kernel.
    ssm = ssm_of("fout", d_state=64, dtype=torch.float32, method="cauchy", dt_min=1 / length, dt_max=1 / length)
    expected = copy.deepcopy(ssm).double()
    assert relative(ssm(length), expected(length)) < limit
    expected.method = "powers"
    assert relative(copy.deepcopy(ssm).double()(length), expected(length)) < 1e-11


@pytest.mark.parametrize("options", [{"init": "fout"}, {"init": "dplr-fourier", "real_scale": 0.0}, {"init": "dplr-real", "real_scale": 0.0}])
@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_rates_of_exactly_zero_are_no_poles_of_the_cauchy_products(options, length, relative):
    ssm = DPLRSSM(4, d_state=8, real_transform="none", dtype=torch.float64, method="cauchy", **options)
    assert (ssm.continuous().rate == 0).any()
    expected = copy.deepcopy(ssm)
    expected.method = "powers"
    assert relative(ssm(length), expected(length)) < 1e-12
    ssm(length).square().sum().backward()
    expected(length).square().sum().backward()
    for (name, parameter), truth in zip(ssm.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, truth.grad, rtol=1e-9, atol=1e-10, msg=name)


def test_a_kernel_of_65536_samples_is_finite_and_right_in_single_precision(relative):
    ssm = DPLRSSM(2, d_state=32)
    assert relative(ssm(65536), copy.deepcopy(ssm).double()(65536)) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_single_precision_gradients_keep_four_digits(method, relative):
    ssm = DPLRSSM(4, d_state=64, method=method)
    wide = copy.deepcopy(ssm).double()
    weights = torch.randn(1, 4, 1024)
    (ssm(1024) * weights).sum().backward()
    (wide(1024) * weights.double()).sum().backward()
    for (name, narrow), expected in zip(ssm.named_parameters(), wide.parameters(), strict=True):
        assert relative(narrow.grad, expected.grad) < 1e-4, name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["legs", "random-low-rank", "real"])
def test_gradients_are_those_of_finite_differences(form, method):
    ssm = ssm_of(form, d_model=2, d_state=4, method=method)
    names = [name for name, _ in ssm.named_parameters()]

    def outputs(*parameters):
        return torch.func.functional_call(ssm, dict(zip(names, parameters, strict=True)), (5,))

    assert torch.autograd.gradcheck(outputs, tuple(parameter.detach().clone().requires_grad_() for parameter in ssm.parameters()), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [0.5, 1.5, 2.0])
def test_a_rate_is_a_longer_time_step(rate, method, relative):
    ssm = ssm_of("legs", method=method)
    slower = copy.deepcopy(ssm)
    with torch.no_grad():
        slower.inv_dt.add_(torch.tensor(rate, dtype=torch.float64).log())
    assert relative(ssm(40, rate=rate), slower(40)) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_the_length_asked_for_before_changes_nothing(method, relative):
    ssm = ssm_of("legs", method=method)
    fresh = copy.deepcopy(ssm)
    before = copy.deepcopy(ssm.state_dict())
    ssm(64)
    torch.testing.assert_close(ssm(100), fresh(100), rtol=0, atol=0)
    assert relative(ssm(256)[..., :100], fresh(100)) < 1e-14
    torch.testing.assert_close(dict(ssm.state_dict()), dict(before), rtol=0, atol=0)
    assert set(before) == {"inv_dt", "A_real", "A_imag", "B", "C", "P"}


def test_training_and_loading_are_seen_at_once_in_kernel_step_and_state():
    ssm, other = ssm_of("legs"), ssm_of("legs")
    first = ssm(30)
    ssm.step(torch.zeros(1, 4, dtype=torch.float64), ssm.initial_state(1))
    with torch.no_grad():
        ssm.C.mul_(2)
    torch.testing.assert_close(ssm(30), 2 * first)
    other.load_state_dict(ssm.state_dict())
    u = torch.randn(2, 4, 9, dtype=torch.float64)
    torch.testing.assert_close(other(30), ssm(30), rtol=0, atol=0)
    torch.testing.assert_close(other.advance(u), ssm.advance(u), rtol=0, atol=0)


def test_without_a_low_rank_part_it_is_the_diagonal_model(relative):
    dplr = DPLRSSM(4, d_state=8, init="diag-inv", dtype=torch.float64)
    diagonal = DiagonalSSM(4, d_state=8, init="diag-inv", disc="bilinear", dtype=torch.float64)
    diagonal.load_state_dict({name: value for name, value in dplr.state_dict().items() if name != "P"})
    assert relative(dplr(77), diagonal(77)) < 1e-13


@pytest.mark.parametrize("angle", [0.7, 1.5707963267948966, 3.0])
def test_the_phase_of_the_eigenvectors_changes_nothing(angle, relative):
    ssm = ssm_of("legs")
    turned = copy.deepcopy(ssm)
    phase = torch.polar(torch.ones(4, dtype=torch.float64), angle * torch.arange(1, 5, dtype=torch.float64))
    with torch.no_grad():
        for name, factor in (("B", phase), ("P", phase), ("C", phase.conj())):
            parameter = getattr(turned, name)
            parameter.copy_(torch.view_as_real(torch.view_as_complex(parameter) * factor))
    assert relative(turned(50), ssm(50)) < 1e-13


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_parameters_give_finite_kernels_states_and_gradients(dtype, method):
    ssm = DPLRSSM(4, d_state=8, dtype=dtype, method=method)
    with torch.no_grad():
        ssm.inv_dt.copy_(torch.tensor([1e-6, 1e-3, 1.0, 10.0]).log().unsqueeze(-1))
        ssm.A_real.copy_(torch.tensor([1e-4, 1e-2, 1.0, 1e4]).log().expand(4, 4))
        ssm.A_imag.copy_(torch.tensor([1e-3, 1.0, 1e2, 1e4]).expand(4, 4))
        ssm.P.mul_(100)
    kernel = ssm(300)
    state = ssm.advance(torch.randn(2, 4, 300, dtype=dtype), ssm.initial_state(2) + 1)
    assert torch.isfinite(kernel).all()
    assert torch.isfinite(torch.view_as_real(state)).all()
    (kernel.sum() + state.abs().sum()).backward()
    for name, parameter in ssm.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


def test_states_that_do_not_decay_do_not_grow_either(dense, relative):
    ssm = ssm_of("legs", d_state=16)
    with torch.no_grad():
        ssm.A_real.fill_(-60.0)
        ssm.P.mul_(1e-3)
    assert relative(ssm(16384), dense(ssm).kernel(16384)) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_computed_in_single_precision(dtype):
    ssm = DPLRSSM(4, d_state=8, dtype=dtype)
    assert ssm.C.dtype == dtype
    torch.testing.assert_close(ssm(20), copy.deepcopy(ssm).float()(20), rtol=0, atol=0)


def test_autocast_changes_no_kernel_and_no_state():
    ssm = DPLRSSM(4, d_state=8)
    u, state = torch.randn(2, 4, 64), torch.randn(2, 4, 4, dtype=torch.complex64)
    expected = ssm(64), ssm.advance(u, state), ssm.response(state, 64), *ssm.step(u[..., 0], state, mode="dense")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ssm(64), ssm.advance(u, state), ssm.response(state, 64), *ssm.step(u[..., 0], state, mode="dense")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fft"}, "'fft'"),
        ({"rank": 0}, "DiagonalSSM"),
        ({"init": "legt"}, "rank"),
        ({"d_state": 5}, "even"),
        ({"n_ssm": 3}, "divide"),
        ({"is_real": True}, "dplr-real"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(options, message):
    with pytest.raises(ConfigError, match=message):
        DPLRSSM(4, **options)


@pytest.mark.parametrize(("form", "method"), [("legs", "powers"), ("legt", "powers"), ("legs", "cauchy")])
def test_the_forward_pass_compiles_to_one_graph_for_each_length(form, method):
    ssm = ssm_of(form, dtype=torch.float32, method=method)
    compiled = torch.compile(lambda length: ssm(length), fullgraph=True, backend="aot_eager")
    for length in (33, 40):
        torch.testing.assert_close(compiled(length), ssm(length), rtol=1e-5, atol=1e-6)
