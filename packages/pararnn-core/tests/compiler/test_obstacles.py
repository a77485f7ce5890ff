"""What cannot be compiled is refused, with every reason by name, and never compiled into something else."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from traced_steps import STATE, assert_program_is_the_step, program_of, tensors

from pararnn.errors import CompilationError

MATRIX = torch.eye(STATE, dtype=torch.float64)

MIXING = {
    "sum": lambda h, d: h + h.sum(-1, keepdim=True),
    "sum over sequences": lambda h, d: h - h.sum(0),
    "sum of all": lambda h, d: torch.tanh(h * h.sum()),
    "sum drawn into zeros": lambda h, d: torch.zeros_like(h) + d[0].sum(-1, keepdim=True),
    "sum of the drive": lambda h, d: h * 0.5 + d[0].sum(-1, keepdim=True).expand_as(h),
    "mean": lambda h, d: h - h.mean(-1, keepdim=True),
    "amax": lambda h, d: h - h.amax(-1, keepdim=True),
    "flip": lambda h, d: h.flip(-1),
    "roll": lambda h, d: torch.roll(h, 1, -1),
    "cumsum": lambda h, d: torch.cumsum(h, -1),
    "softmax": lambda h, d: torch.softmax(h, -1),
    "log_softmax": lambda h, d: F.log_softmax(h, -1),
    "logsumexp": lambda h, d: h - torch.logsumexp(h, -1, keepdim=True),
    "norm": lambda h, d: F.normalize(h, dim=-1),
    "layer_norm": lambda h, d: F.layer_norm(h, (STATE,)),
    "sort": lambda h, d: h.sort(-1).values,
    "cat": lambda h, d: torch.cat((h[..., :2], h[..., 2:]), -1),
    "slice": lambda h, d: h + F.pad(h[..., 1:], (0, 1)),
    "select": lambda h, d: h * h[..., :1],
    "split": lambda h, d: torch.cat(h.chunk(2, -1)[::-1], -1),
    "index": lambda h, d: h[..., torch.tensor([1, 0, 3, 2])],
    "gather": lambda h, d: h.gather(-1, torch.zeros_like(h, dtype=torch.long)),
    "reshape": lambda h, d: h.reshape(-1).reshape(STATE, -1).T.reshape_as(h).tanh(),
    "outer": lambda h, d: (h.unsqueeze(-1) * h.unsqueeze(-2)).sum(-1),
    "glu": lambda h, d: torch.cat((F.glu(h, -1), F.glu(h, -1)), -1),
}
NAMES = {
    "sum over sequences": "sum", "sum of all": "sum", "sum drawn into zeros": "sum", "sum of the drive": "sum", "split": "split",
    "select": "slice", "norm": "norm", "reshape": "view", "outer": "mul", "glu": "glu", "index": "index",
}  # fmt: skip


def refusal(step, *kinds, parameters=None, leaves=None):
    with pytest.raises(CompilationError) as caught:
        program_of(step, tensors(*(kinds or ("element",))) if leaves is None else leaves, parameters)
    assert caught.value.obstacles
    assert all(obstacle in str(caught.value) for obstacle in caught.value.obstacles)
    return caught.value.obstacles


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_channels_or_sequences_is_refused_by_name(name):
    obstacles = refusal(MIXING[name])
    assert any(NAMES.get(name, name) in obstacle for obstacle in obstacles), obstacles


def test_matrix_products_are_refused_by_name():
    assert any("mm" in one and "mixes channels" in one for one in refusal(lambda h, d: h @ MATRIX))
    linear = nn.Linear(STATE, STATE, dtype=torch.float64)
    assert any("mm" in one for one in refusal(lambda h, d: linear(h), parameters={"w": linear.weight, "b": linear.bias}))


def test_every_obstacle_is_told_and_where_it_is():
    def step(state, drive):
        first = torch.cumsum(state, -1)
        second = torch.flip(first, (-1,))
        return torch.lgamma(second) + torch.rand_like(state)

    obstacles = refusal(step)
    assert [next((one for one in obstacles if name in one), None) for name in ("cumsum", "flip", "lgamma", "rand")].count(None) == 0, obstacles
    assert all("test_obstacles.py, line" in obstacle for obstacle in obstacles)
    assert len(obstacles) == 4


@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, torch.randn_like, torch.bernoulli, F.dropout, lambda h: h + torch.randn(STATE)],
    ids=lambda draw: draw.__name__.strip("<>"),
)
def test_random_numbers_are_refused(draw):
    state = torch.get_rng_state()
    assert any("random" in obstacle for obstacle in refusal(lambda h, d: h + draw(torch.sigmoid(d[0]))))
    assert torch.equal(torch.get_rng_state(), state)


READING = {
    "if": lambda h, d: h if h.sum() > 0 else -h,
    "item": lambda h, d: h * d[0].max().item(),
    "float": lambda h, d: h * float(d[0][0, 0]),
    "tolist": lambda h, d: h * d[0].tolist()[0][0],
    "numpy": lambda h, d: h * torch.from_numpy(d[0].detach().numpy()),
    "all": lambda h, d: h if bool((h > 0).all()) else -h,
    "allclose": lambda h, d: h if torch.allclose(h, d[0]) else -h,
    "equal": lambda h, d: h if torch.equal(h, d[0]) else -h,
    "nonzero": lambda h, d: h * len(torch.nonzero(h)),
    "boolean index": lambda h, d: h * len(h[h > 0]),
}


@pytest.mark.parametrize("name", READING)
def test_a_step_that_depends_on_numbers_is_refused(name):
    assert any("numbers of a tensor" in obstacle for obstacle in refusal(READING[name])), refusal(READING[name])


def test_numbers_of_a_parameter_are_not_drawn_into_the_program():
    weight = torch.tensor(0.5, dtype=torch.float64)
    for step in (lambda h, d: h * weight.item(), lambda h, d: h * weight.numpy(), lambda h, d: h * weight.tolist(), lambda h, d: h * float(weight)):
        assert any("numbers of a tensor" in obstacle for obstacle in refusal(step, parameters={"weight": weight}))
        assert any("numbers of a tensor" in obstacle or "neither drive" in obstacle for obstacle in refusal(step))


def test_tensors_that_are_found_nowhere_are_refused():
    weights = [torch.rand(STATE, dtype=torch.float64)]
    assert any("neither drive" in obstacle for obstacle in refusal(lambda h, d: h * weights[0]))


def test_inputs_are_not_to_be_written_to():
    assert any("in-place" in one or "in place" in one for one in refusal(lambda h, d: h.mul_(2)))
    count = torch.zeros((), dtype=torch.long)

    def counting(state, drive):
        count.add_(1)
        return state * 0.5

    assert any("in place" in obstacle for obstacle in refusal(counting, parameters={"count": count}))
    buffer = torch.zeros(STATE, dtype=torch.float64)
    assert any("in-place" in one or "in place" in one for one in refusal(lambda h, d: h + buffer.add_(1), parameters={"buffer": buffer}))


def test_other_precisions_inside_a_step_are_refused():
    assert any("bfloat16" in obstacle for obstacle in refusal(lambda h, d: h.bfloat16().to(h.dtype)))
    wide = torch.rand(1, STATE, dtype=torch.float64)
    with pytest.raises(CompilationError, match="float64"):
        program_of(lambda h, d: (h.double() * 2).float(), [wide.float()], dtype=torch.float32)
    assert any("int" in obstacle for obstacle in refusal(lambda h, d: h * d[0].long()))


def test_integers_are_not_computed_with():
    leaves = [*tensors("element"), torch.randint(0, 3, (3, 4, STATE))]
    assert any("integers" in obstacle or "int64" in obstacle for obstacle in refusal(lambda h, d: h * (d[1] + d[1]), leaves=leaves))
    assert any("integers" in obstacle for obstacle in refusal(lambda h, d: torch.where(d[1] == 2, h, d[0]), leaves=leaves))


def test_complex_states_are_refused():
    with pytest.raises(CompilationError, match="complex64"):
        program_of(lambda h, d: h, tensors("element"), dtype=torch.complex64)
    assert refusal(lambda h, d: torch.view_as_complex(torch.stack((h, h), -1)).real)


def test_shapes_that_are_no_number_of_a_channel_are_refused():
    uneven = torch.rand(3, 4, 3 * STATE + 1, dtype=torch.float64)
    obstacles = refusal(lambda h, d: h * d[0][..., :STATE], leaves=[uneven])
    assert any("13" in obstacle and "4 channels" in obstacle for obstacle in obstacles)
    matrix = nn.Parameter(torch.rand(STATE, STATE + 1, dtype=torch.float64))
    assert any("'matrix'" in obstacle and "(4, 5)" in obstacle for obstacle in refusal(lambda h, d: h * matrix[0, 0], parameters={"matrix": matrix}))


def test_a_step_that_returns_something_else_is_refused():
    assert any("returns (4,)" in obstacle for obstacle in refusal(lambda h, d: d[1], "element", "channel"))
    assert any("returns tuple" in obstacle for obstacle in refusal(lambda h, d: (h, h)))
    assert any("float32" in obstacle for obstacle in refusal(lambda h, d: torch.zeros(h.shape, dtype=torch.float32)))


def test_a_step_that_fails_is_refused_with_what_it_said():
    def step(state, drive):
        raise ValueError("no such gate")

    assert any("no such gate" in obstacle for obstacle in refusal(step))


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(STATE, dtype=torch.float64))

    def step(self, state, drive):
        return torch.tanh(self.weight * state + drive[0])


class Positive(nn.Module):
    def forward(self, weight):
        return F.softplus(weight)


def test_a_pointwise_parametrisation_is_traced_through_to_the_original():
    cell = Weighted()
    parametrize.register_parametrization(cell, "weight", Positive())
    assert_program_is_the_step(cell.step, tensors("element"), dict(cell.named_parameters()))
    assert program_of(cell.step, tensors("element"), dict(cell.named_parameters()))[1] == ("parametrizations.weight.original",)


def test_a_parametrisation_that_mixes_channels_is_refused():
    cell = parametrizations.weight_norm(Weighted(), "weight", dim=None)
    assert any("mixes channels" in one or "norm" in one for one in refusal(cell.step, parameters=dict(cell.named_parameters())))
    with parametrize.cached():
        assert any("cached" in one for one in refusal(cell.step, parameters=dict(cell.named_parameters())))


def test_a_custom_operator_is_refused_by_name():
    @torch.library.custom_op("front_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    assert any("front_test" in obstacle for obstacle in refusal(lambda h, d: twice(h.detach()) + h))
