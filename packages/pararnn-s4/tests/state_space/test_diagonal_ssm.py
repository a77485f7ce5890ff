"""Diagonal models against dense ones, and what holds for kernels of any length, rate and precision."""

import copy

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.diagonal_system import SampledDiagonal

FORMS = {
    "zoh": {},
    "bilinear": {"disc": "bilinear"},
    "real-zoh": {"is_real": True, "init": "diag-real"},
    "real-bilinear-of-fast-states": {"is_real": True, "init": "diag-real", "disc": "bilinear", "dt_max": 2.0},
    "a-time-step-for-each-state": {"dt_tie": False},
    "three-channels-and-shared-systems": {"channels": 3, "n_ssm": 2, "disc": "bilinear"},
    "all-transforms": {"dt_fast": True, "dt_transform": "softplus", "real_transform": "relu", "imag_transform": "relu"},
    "mixture": {"init": "diag", "n_ssm": 4},
}


def ssm_of(form, d_model=4, d_state=8, **options):
    return DiagonalSSM(d_model, d_state=d_state, **{"dtype": torch.float64, **FORMS[form], **options})


@pytest.mark.parametrize("length", [1, 2, 33, 150])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_equals_the_powers_of_the_dense_transition(form, length, dense, relative):
    ssm = ssm_of(form)
    kernel = ssm(length)
    assert kernel.shape == (ssm.channels, 4, length)
    assert kernel.dtype == torch.float64
    assert relative(kernel, dense(ssm).kernel(length)) < 1e-13


@pytest.mark.parametrize(
    ("imaginary", "disc", "first", "last"),
    [
        ("lin", "zoh", [0.5365912781626732, 0.032765824736707305, -0.23511587644035015, -0.18389603547892208], -0.009155644490968198),
        ("lin", "bilinear", [0.5448512176864346, 0.07509695326008001, -0.2147900345884593, -0.224668639101759], 0.029729571506989905),
        ("inv", "zoh", [0.6465091124207735, 0.25840685884593917, 0.21901484737009608, 0.2714257340753121], -0.019418169195837835),
        ("inv", "bilinear", [0.6482966588693806, 0.32283312135282644, 0.13994838330791298, 0.17946174502082474], -0.029696815731222244),
        ("quad", "zoh", [0.4177479689285836, -0.08263006821533231, 0.07102180960609575, 0.24578927518530888], 0.023084947477418516),
    ],
)
def test_kernels_have_their_known_values(imaginary, disc, first, last):
    n = torch.arange(4, dtype=torch.float64)
    parts = {"lin": torch.pi * n, "inv": 8 / torch.pi * (8 / (2 * n + 1) - 1), "quad": (1 + 2 * n) ** 2 / torch.pi}
    rate = torch.complex(torch.full((1, 4), -0.5, dtype=torch.float64), parts[imaginary].unsqueeze(0))
    output = torch.complex(torch.ones(1, 1, 4, dtype=torch.float64), 0.5 * n.reshape(1, 1, 4))
    model = Continuous(rate, torch.ones_like(rate), output, torch.full((1, 1), 0.1, dtype=torch.float64))
    kernel = SampledDiagonal(model, disc, dtype=torch.float64, backend="auto").kernel(64)[0, 0]
    torch.testing.assert_close(kernel[:4], torch.tensor(first, dtype=torch.float64), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(kernel[63], torch.tensor(last, dtype=torch.float64), rtol=1e-12, atol=1e-14)


def test_the_real_kernel_has_its_known_values():
    rate = -torch.arange(1, 5, dtype=torch.float64).unsqueeze(0)
    model = Continuous(rate, torch.ones_like(rate), torch.ones(1, 1, 4, dtype=torch.float64), torch.full((1, 1), 0.1, dtype=torch.float64))
    kernel = SampledDiagonal(model, "zoh", dtype=torch.float64, backend="auto").kernel(4)[0, 0]
    expected = [0.3546111203555671, 0.27956198382131725, 0.2231144175361344, 0.18018908339]
    torch.testing.assert_close(kernel, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=0)


@pytest.mark.parametrize("length", [1024, 16384, 65536])
@pytest.mark.parametrize("disc", ["zoh", "bilinear"])
@pytest.mark.parametrize("init", ["diag-lin", "diag-inv", "diag-legs", "diag-quad"])
def test_a_single_precision_kernel_keeps_six_digits_at_every_length(init, disc, length, relative):
    ssm = DiagonalSSM(2, d_state=64, init=init, disc=disc)
    assert ssm(length).dtype == torch.float32
    assert relative(ssm(length), copy.deepcopy(ssm).double()(length)) < 1e-6


def test_single_precision_gradients_keep_four_digits(relative):
    ssm = DiagonalSSM(4, d_state=32, init="diag-inv")
    wide = copy.deepcopy(ssm).double()
    weights = torch.randn(1, 4, 1024)
    (ssm(1024) * weights).sum().backward()
    (wide(1024) * weights.double()).sum().backward()
    for (name, narrow), expected in zip(ssm.named_parameters(), wide.parameters(), strict=True):
        assert relative(narrow.grad, expected.grad) < 2e-5, name


@pytest.mark.parametrize("form", [form for form in FORMS if form != "all-transforms"])
def test_a_rate_is_a_longer_time_step(form):
    ssm = ssm_of(form, dt_transform="none")
    slower = copy.deepcopy(ssm)
    with torch.no_grad():
        slower.inv_dt.mul_(1.5)
    torch.testing.assert_close(ssm(40, rate=1.5), slower(40), rtol=1e-14, atol=1e-15)


def test_a_rate_may_be_a_tensor_of_one_number():
    ssm = ssm_of("zoh")
    torch.testing.assert_close(ssm(9, rate=torch.tensor(1.5)), ssm(9, rate=1.5), rtol=0, atol=0)


def test_a_longer_kernel_begins_with_the_shorter_one():
    ssm = ssm_of("zoh")
    torch.testing.assert_close(ssm(256)[..., :100], ssm(100), rtol=0, atol=1e-14)


def test_asking_changes_nothing_and_training_is_seen_at_once():
    ssm = ssm_of("bilinear")
    before = copy.deepcopy(ssm.state_dict())
    first = ssm(50)
    state = ssm.advance(torch.randn(2, 4, 7, dtype=torch.float64))
    ssm.step(torch.randn(2, 4, dtype=torch.float64), state)
    ssm.decoder()
    torch.testing.assert_close(ssm(50), first, rtol=0, atol=0)
    torch.testing.assert_close(dict(ssm.state_dict()), dict(before), rtol=0, atol=0)
    assert set(before) == {"inv_dt", "A_real", "A_imag", "B", "C"}
    with torch.no_grad():
        ssm.C.mul_(2)
    torch.testing.assert_close(ssm(50), 2 * first)


def test_saved_parameters_give_the_same_kernel():
    ssm, other = ssm_of("zoh"), ssm_of("zoh")
    assert not torch.equal(ssm(9), other(9))
    other.load_state_dict(ssm.state_dict())
    torch.testing.assert_close(other(9), ssm(9), rtol=0, atol=0)


@pytest.mark.parametrize("disc", ["zoh", "bilinear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_parameters_give_finite_kernels_states_and_gradients(disc, dtype):
    ssm = DiagonalSSM(4, d_state=8, disc=disc, dtype=dtype)
    with torch.no_grad():
        ssm.inv_dt.copy_(torch.tensor([1e-8, 1e-3, 1.0, 10.0]).log().unsqueeze(-1))
        ssm.A_real.copy_(torch.tensor([1e-30, 1e-4, 1.0, 1e4]).log().expand(4, 4))
        ssm.A_imag.copy_(torch.tensor([0.0, 1e-6, 1e2, 1e4]).expand(4, 4))
    kernel = ssm(300)
    state = ssm.advance(torch.randn(2, 4, 300, dtype=dtype), ssm.initial_state(2) + 1)
    assert torch.isfinite(kernel).all()
    assert torch.isfinite(torch.view_as_real(state)).all()
    (kernel.sum() + state.abs().sum()).backward()
    for name, parameter in ssm.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_computed_in_single_precision(dtype):
    ssm = DiagonalSSM(4, d_state=8, dtype=dtype)
    assert ssm.C.dtype == dtype
    single = copy.deepcopy(ssm).float()
    torch.testing.assert_close(ssm(20), single(20), rtol=0, atol=0)
    u = torch.randn(2, 4, 20).to(dtype)
    torch.testing.assert_close(ssm.advance(u), single.advance(u.float()), rtol=0, atol=0)
    y, state = ssm.step(u[..., 0], ssm.initial_state(2))
    assert (y.dtype, state.dtype) == (torch.float32, torch.complex64)


def test_autocast_changes_no_kernel():
    ssm = DiagonalSSM(4, d_state=8)
    expected = ssm(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(ssm(64), expected, rtol=0, atol=0)


def test_features_that_share_a_system_differ_in_time_step_and_output_only():
    ssm = ssm_of("zoh", n_ssm=2)
    model = ssm.continuous()
    torch.testing.assert_close(model.rate[:2], model.rate[2:], rtol=0, atol=0)
    torch.testing.assert_close(model.input[:2], model.input[2:], rtol=0, atol=0)
    assert not torch.equal(model.dt[:2], model.dt[2:])


def test_a_learning_rate_of_zero_freezes_the_state_matrix():
    ssm = DiagonalSSM(4, d_state=8, lr={"A": 0.0, "dt": 1e-3}, wd=0.0)
    assert {name for name, _ in ssm.named_buffers()} == {"A_real", "A_imag"}
    assert ssm.inv_dt._optim == {"lr": 1e-3, "weight_decay": 0.0}


def test_gradients_are_those_of_finite_differences():
    ssm = DiagonalSSM(2, d_state=4, disc="bilinear", dtype=torch.float64)
    names = [name for name, _ in ssm.named_parameters()]

    def outputs(*parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(ssm, values, (7,))

    assert torch.autograd.gradcheck(outputs, tuple(parameter.detach().clone().requires_grad_() for parameter in ssm.parameters()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disc": "dss"}, "'dss'"),
        ({"d_state": 7}, "even"),
        ({"n_ssm": 3}, "divide"),
        ({"channels": 0}, "at least 1"),
        ({"is_real": True}, "diag-real"),
        ({"init": "legz"}, "'legz'"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(options, message):
    with pytest.raises(ConfigError, match=message):
        DiagonalSSM(4, **options)


def test_arguments_that_do_not_fit_are_refused_with_what_would():
    ssm = DiagonalSSM(4, d_state=8)
    with pytest.raises(ShapeError, match="at least 1"):
        ssm(0)
    with pytest.raises(ShapeError, match="whole number"):
        ssm(4.0)
    for rate in (0.0, -1.0, float("nan"), float("inf"), "1", None, [1.0, 2.0]):
        with pytest.raises(ConfigError, match="rate"):
            ssm.step(torch.zeros(2, 4), ssm.initial_state(2), rate=rate)
    with pytest.raises(ShapeError, match=r"batch, 4, 4.*one of each conjugate pair"):
        ssm.response(torch.zeros(2, 4, 8, dtype=torch.complex64), 3)
    with pytest.raises(DTypeError, match="complex64"):
        ssm.response(torch.zeros(2, 4, 4), 3)
    with pytest.raises(ShapeError, match="batch, 4, length"):
        ssm.advance(torch.zeros(2, 5, 8))
    with pytest.raises(DTypeError, match="real"):
        ssm.advance(torch.zeros(2, 4, 8, dtype=torch.complex64))
    with pytest.raises(ShapeError, match="one sample"):
        ssm.step(torch.zeros(2, 4, 1), ssm.initial_state(2))


@pytest.mark.parametrize("form", ["zoh", "bilinear", "real-bilinear-of-fast-states"])
def test_the_forward_pass_compiles_to_one_graph_for_each_length(form):
    ssm = ssm_of(form, dtype=torch.float32)
    compiled = torch.compile(lambda length: ssm(length), fullgraph=True, backend="aot_eager")
    for length in (33, 40):
        torch.testing.assert_close(compiled(length), ssm(length), rtol=1e-5, atol=1e-6)
