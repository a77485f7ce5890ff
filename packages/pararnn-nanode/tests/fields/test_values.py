"""Fields against the formula written out for one time and one sample."""

import pytest
import torch
import torch.nn.functional as F

from pararnn_nanode import (
    NANODE,
    AppendTimeField,
    CallableField,
    ConstantPath,
    ConvField,
    DenseField,
    DiagonalField,
    TrigPath,
    WeightPath,
    odeint,
)

DIM, INPUTS, SAMPLES, STEPS = 4, 3, 5, 6


@pytest.fixture(autouse=True)
def _float64():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


class Moving(WeightPath):
    """Weights `a + b sin(3 t)` with random `a` and `b`."""

    n_matrices = 2

    def __init__(self, shape):
        super().__init__(shape)
        self.start, self.swing = (torch.nn.Parameter(torch.randn(self.shape)) for _ in range(2))

    def values(self, times, anchors):
        return self.start + self.swing * torch.sin(3 * times).reshape(*times.shape, *(1,) * self.start.ndim)


def dense():
    return DenseField(DIM, Moving((DIM, DIM)), bias=Moving((DIM,)), input=Moving((DIM, INPUTS)))


def diagonal():
    return DiagonalField(DIM, Moving((DIM,)), bias=Moving((DIM,)), input=Moving((DIM, INPUTS)), activation="sigmoid")


def append_time():
    return AppendTimeField(DIM, Moving((DIM, DIM + 1)), bias=Moving((DIM,)), input=Moving((DIM, INPUTS)))


def plane(groups=1):
    return ConvField(
        DIM, (3, 5), Moving((DIM, DIM // groups, 3, 5)), bias=Moving((DIM,)), input=Moving((DIM, INPUTS, 3, 3)), groups=groups, activation="softplus"
    )


def line():
    return ConvField(DIM, 3, Moving((DIM, DIM, 3)), bias=Moving((DIM,)), input=Moving((DIM, INPUTS, 1)))


def by_hand(field, t, x, u):
    """`f(t, x)` of one sample at one time."""
    weight, bias, pushing = (path.at(t) for path in (field.path, field.bias, field.input))
    if isinstance(field, ConvField):
        convolve = F.conv1d if field.sites == 1 else F.conv2d
        pre = convolve(x[None], weight, bias, padding="same", groups=field.groups)[0] + convolve(u[None], pushing, padding="same")[0]
    elif isinstance(field, AppendTimeField):
        pre = weight @ torch.cat([x, torch.tensor([t])]) + bias + pushing @ u
    elif isinstance(field, DiagonalField):
        pre = weight * x + bias + pushing @ u
    else:
        pre = weight @ x + bias + pushing @ u
    return {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "softplus": F.softplus}[field.activation](pre)


def shapes(field):
    """The shape of one sample of the state, and of one of the inputs."""
    sites = {0: (), 1: (7,), 2: (6, 8)}[field.sites]
    return (DIM, *sites), (INPUTS, *sites)


MAKERS = {"dense": dense, "diagonal": diagonal, "append-time": append_time, "conv1d": line, "conv2d": plane, "grouped": lambda: plane(groups=2)}
FIELDS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@FIELDS
@pytest.mark.parametrize("batch", [(), (SAMPLES,), (2, SAMPLES)], ids=str)
def test_one_time_serves_any_batch(make, batch):
    field = make()
    state, inputs = shapes(field)
    x, u = torch.randn(*batch, *state), torch.randn(*batch, *inputs)
    expected = torch.stack([by_hand(field, 0.3, *pair) for pair in zip(x.reshape(-1, *state), u.reshape(-1, *inputs), strict=True)])
    torch.testing.assert_close(field(0.3, x, u), expected.view_as(x))


@FIELDS
def test_every_sample_may_have_its_own_time(make):
    field = make()
    state, inputs = shapes(field)
    x, u, times = torch.randn(SAMPLES, *state), torch.randn(SAMPLES, *inputs), torch.rand(SAMPLES)
    expected = torch.stack([by_hand(field, float(t), a, b) for t, a, b in zip(times, x, u, strict=True)])
    torch.testing.assert_close(field(times, x, u), expected)


@FIELDS
def test_all_steps_are_evaluated_at_once(make):
    field = make()
    state, inputs = shapes(field)
    x, u, times = torch.randn(STEPS, SAMPLES, *state), torch.randn(STEPS, SAMPLES, *inputs), torch.rand(STEPS)
    rows = zip(times, x, u, strict=True)
    expected = torch.stack([torch.stack([by_hand(field, float(t), a, b) for a, b in zip(*row, strict=True)]) for t, *row in rows])
    torch.testing.assert_close(field.evaluate(x, field.weights(times, u=u)), expected)


@FIELDS
def test_steps_and_samples_may_both_lead(make):
    field = make()
    state, inputs = shapes(field)
    x, u, times = torch.randn(STEPS, SAMPLES, *state), torch.randn(STEPS, SAMPLES, *inputs), torch.rand(STEPS, SAMPLES)
    one_by_one = torch.stack([field(t, a, b) for t, a, b in zip(times, x, u, strict=True)])
    torch.testing.assert_close(field.evaluate(x, field.weights(times, u=u)), one_by_one)


@FIELDS
def test_a_field_under_vmap_equals_the_field(make):
    field = make()
    state, inputs = shapes(field)
    x, u = torch.randn(SAMPLES, *state), torch.randn(SAMPLES, *inputs)
    torch.testing.assert_close(torch.vmap(lambda a, b: field(0.3, a, b))(x, u), field(0.3, x, u))


@pytest.mark.parametrize("kind", [DenseField, DiagonalField, AppendTimeField])
def test_a_bias_and_an_activation_may_be_left_out(kind):
    shape = {DenseField: (DIM, DIM), DiagonalField: (DIM,), AppendTimeField: (DIM, DIM + 1)}[kind]
    field = kind(DIM, ConstantPath(shape, gain=1.0), activation=None)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.normal_()
    x = torch.randn(SAMPLES, DIM)
    weight = field.path.weight
    expected = {
        DenseField: lambda: x @ weight.T,
        DiagonalField: lambda: weight * x,
        AppendTimeField: lambda: torch.cat([x, torch.full((SAMPLES, 1), 0.4)], 1) @ weight.T,
    }[kind]()
    torch.testing.assert_close(field(0.4, x), expected)


def test_time_appended_with_no_weight_is_the_autonomous_field():
    autonomous = DenseField(DIM, ConstantPath((DIM, DIM)), bias=ConstantPath(DIM))
    appended = AppendTimeField(DIM, ConstantPath((DIM, DIM + 1)), bias=ConstantPath(DIM))
    with torch.no_grad():
        appended.path.weight.copy_(torch.cat([autonomous.path.weight, torch.zeros(DIM, 1)], 1))
        appended.bias.weight.copy_(autonomous.bias.weight.normal_())
    x = torch.randn(SAMPLES, DIM)
    for t in (0.0, 0.3, 7.0):
        torch.testing.assert_close(appended(t, x), autonomous(t, x), rtol=0, atol=1e-15)


def test_an_activation_may_be_a_function():
    field = DenseField(DIM, ConstantPath((DIM, DIM)), activation=torch.sin)
    x = torch.randn(SAMPLES, DIM)
    torch.testing.assert_close(field(0.0, x), torch.sin(x @ field.path.weight.T))


def test_a_function_sees_the_time_in_the_dtype_of_the_state():
    seen = []
    field = CallableField(lambda t, x: seen.append(t) or -x)
    for dtype, real in ((torch.float32, torch.float32), (torch.complex64, torch.float32), (torch.float64, torch.float64)):
        field(0.5, torch.ones(2, dtype=dtype))
        assert seen[-1].dtype == real
        assert seen[-1].shape == ()


def test_a_function_sees_times_that_broadcast_against_the_state():
    field = CallableField(lambda t, x: t * x)
    x, times = torch.randn(SAMPLES, 3, 2), torch.rand(SAMPLES)
    torch.testing.assert_close(field(times, x), torch.stack([t * row for t, row in zip(times, x, strict=True)]))


def test_a_function_may_have_inputs():
    field = CallableField(lambda t, x, u: t * x + u)
    x, u = torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 3)
    torch.testing.assert_close(field(0.5, x, u), 0.5 * x + u)


class Turning(torch.nn.Module):
    """A right-hand side that reads a path itself."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, t, x):
        return torch.tanh(x @ self.path.at(t).mT) * torch.cos(t)


@pytest.mark.parametrize("way", [{}, {"parallel": "picard"}, {"method": "dopri5"}, {"method": "rk4", "gradient": "checkpoint"}], ids=str)
def test_a_module_that_reads_a_smooth_path_is_served_at_times_of_each_sample(way):
    x, ends = torch.randn(SAMPLES, 3), torch.linspace(0.3, 1.0, SAMPLES).unsqueeze(1)
    field = CallableField(Turning(TrigPath((3, 3), 2)))
    one_by_one = torch.stack([NANODE(field, 80, (0.0, float(end)), **way)(row) for row, end in zip(x, ends, strict=True)])
    torch.testing.assert_close(NANODE(field, 80, **way)(x, ends)[0], one_by_one, rtol=1e-6, atol=1e-6)


def test_odeint_serves_such_a_module_at_times_of_each_sample():
    x, times = torch.randn(SAMPLES, 3), torch.linspace(0.3, 1.0, SAMPLES).unsqueeze(1) * torch.tensor([0.0, 1.0])
    turning = Turning(TrigPath((3, 3), 2))
    one_by_one = torch.stack([odeint(turning, row, t) for row, t in zip(x, times, strict=True)], dim=1)
    torch.testing.assert_close(odeint(turning, x, times), one_by_one, rtol=1e-5, atol=1e-5)


def test_the_parameters_of_a_module_are_those_of_its_field():
    class Decay(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = torch.nn.Parameter(torch.ones(()))

        def forward(self, t, x):
            return -self.rate * x

    field = CallableField(Decay())
    assert [name for name, _ in field.named_parameters()] == ["fn.rate"]
    torch.testing.assert_close(field(0.0, torch.ones(2)), -torch.ones(2))
