"""An answer that is called converged is that of the walk, also where the first corrections are small or look as if they shrank fast."""

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn.structures import Dense
from pararnn_nanode.depth.blocks import Summed
from pararnn_nanode.depth.gradient import settle
from pararnn_nanode.depth.iteration import Cut, _guess
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.depth.stages import Stages
from pararnn_nanode.depth.stop import Progress, Stop
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.reads import reads
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath
from pararnn_nanode.paths.constant import ConstantPath

WAYS = ["newton", "picard", "windowed"]


def turning(times, steps):
    return schedule(times, steps=steps, span=(0.0, 1.0))


def still(value=0.0):
    """A linear field that stands still, of one channel, in buckets."""
    field = DenseField(1, BucketPath((1, 1), 64), activation="tanh")
    with torch.no_grad():
        field.path.coefficients.fill_(value)
    return field


@pytest.mark.parametrize("parallel", WAYS)
@pytest.mark.parametrize("times", [[0.9, 0.0, 0.5], [0.7, 0.0, 0.7], [0.3, 0.0, 0.6], [0.8, 0.4, 1.0]], ids=str)
def test_times_that_turn_round_give_the_walk(parallel, times):
    field = DenseField(2, ConstantPath((2, 2)))
    with torch.no_grad():
        field.path.coefficients.copy_(torch.tensor([[[0.3, -0.5], [0.4, 0.1]]]))
    x, plan = torch.tensor([1.0, -0.5]), turning(times, 10)
    solution = integrate(field, x, plan, parallel=parallel)
    torch.testing.assert_close(solution.x, fixed.integrate(field, x, plan).x, rtol=1e-9, atol=1e-9)


def test_the_guess_stays_bounded_where_time_turns_round_within_a_block():
    field, x, plan = DenseField(2, ConstantPath((2, 2))), torch.ones(2), turning([0.9, 0.0, 0.9001], 1000)
    with torch.no_grad():
        method = find("euler")
        stages = Stages.read(field, method, plan, reads(field, method, plan, x, None), x, None)
        states, _, parts = _guess(stages, x, Cut.into(stages.steps, 1))
    assert float(states.abs().max()) < 10
    assert float(parts.min()) >= 0
    assert float(parts.max()) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("parallel", WAYS)
def test_growth_that_the_walk_of_large_steps_does_not_see_is_found(parallel, dtype):
    field = still()
    with torch.no_grad():
        field.path.coefficients[3::4] = 200.0
    field, x = field.to(dtype), torch.full((1,), 1e-9 if dtype == torch.float32 else 1e-15, dtype=dtype)
    plan = schedule(1.0, steps=256, span=(0.0, 1.0))
    truth = fixed.integrate(field, x, plan).x
    assert float(truth.detach()) > 1e-4
    torch.testing.assert_close(integrate(field, x, plan, parallel=parallel).x, truth, rtol=1e-4, atol=0)


@pytest.mark.parametrize("parallel", ["picard", "newton"])
@pytest.mark.parametrize("seed", range(12))
def test_stiff_weights_in_single_precision_give_the_walk_or_are_walked(parallel, seed):
    torch.manual_seed(seed)
    field = DenseField(3, ConstantPath((3, 3)), activation="relu").float()
    with torch.no_grad():
        field.path.coefficients.mul_(5 + 2 * seed)
    x, plan = torch.randn(2, 3, dtype=torch.float32), schedule(1.0, steps=64, span=(0.0, 1.0))
    truth = fixed.integrate(field, x, plan).x.detach()
    solution = integrate(field, x, plan, parallel=parallel)
    assert float((solution.x.detach() - truth).abs().max()) <= 1e-2 * (1 + float(truth.abs().max()))


def test_a_small_sample_is_not_hidden_behind_a_large_one():
    field = still()
    with torch.no_grad():
        field.path.coefficients[3::4] = 200.0
    x, plan = torch.tensor([[1e3], [1e-13]]), schedule(1.0, steps=256, span=(0.0, 1.0))
    for parallel in WAYS:
        torch.testing.assert_close(integrate(field, x, plan, parallel=parallel).x, fixed.integrate(field, x, plan).x, rtol=1e-6, atol=0)


def test_one_steep_correction_proves_nothing():
    stop = Stop.of(torch.float64, Dense, steep=True, tolerance=None)
    states, progress = torch.ones(4, 2), Progress()
    for size in (1e16, 1e-11):
        progress, verdict = stop.judge(progress, torch.full((4, 2), size), states)
    assert verdict[1]


def test_corrections_that_grow_are_open_however_small():
    stop = Stop.of(torch.float64, Dense, steep=True, tolerance=None)
    states, progress = torch.ones(4, 2), Progress()
    for size in (1e-15, 1e-14, 1e-13):
        progress, verdict = stop.judge(progress, torch.full((4, 2), size), states)
        assert verdict[1]


def test_an_infinite_state_is_never_settled():
    stop = Stop.of(torch.float32, Dense, steep=True, tolerance=None)
    _, verdict = stop.judge(Progress(), torch.zeros(4, 2), torch.full((4, 2), torch.inf))
    assert verdict[1]


def test_a_sample_that_weighs_little_in_the_loss_has_its_gradient_to_rounding():
    # The first sample is at rest, so that its costates settle at once.
    x = torch.cat((torch.full((1, 4), 1e3), torch.randn(1, 4))).requires_grad_()
    field, plan, weights = DenseField(4, ConstantPath((4, 4))), schedule(4.0, steps=200, span=(0.0, 4.0)), torch.tensor([[1e10], [1.0]])
    truth = torch.autograd.grad((fixed.integrate(field, x, plan).x * weights).sum(), x)[0][1]
    for parallel in WAYS:
        found = torch.autograd.grad((integrate(field, x, plan, parallel=parallel).x * weights).sum(), x)[0][1]
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=0)


def test_costates_of_a_state_without_a_batch_settle():
    costate, _ = settle(lambda costate: 0.1 * costate, Summed(), torch.ones(30))
    assert bool(costate.isfinite().all())


def test_costates_of_many_samples_settle_though_rounding_of_some_always_grows():
    torch.manual_seed(0)
    weights, gradient = torch.eye(4) + 0.05 * torch.randn(30, 4, 4), torch.randn(30, 2000, 4)

    def pull(costate):
        return torch.einsum("tbi,tij->tbj", costate, weights)

    expected = gradient.clone()
    for step in range(28, -1, -1):
        expected[step] += pull(expected)[step + 1]
    found, _ = settle(pull, Summed(), gradient, structure=Dense)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_field_that_answers_otherwise_for_many_times_at_once_is_walked():
    field = CallableField(lambda t, x: torch.sin(x) * (0.7 if float(t.max()) > 0.5 else 1.0))
    x, plan = torch.tensor([0.5]), schedule(1.0, steps=20, span=(0.0, 1.0))
    solution = integrate(field, x, plan, parallel="picard")
    assert not solution.converged
    assert "one alone" in solution.reason
    torch.testing.assert_close(solution.x, fixed.integrate(field, x, plan).x, rtol=0, atol=0)


@pytest.mark.parametrize("parallel", ["picard", "windowed", "auto"])
@pytest.mark.parametrize("mix", [lambda x: x - x.mean(0), lambda x: x / x.norm(), lambda x: x.reshape(2, 3) - 0.5], ids=["mean", "norm", "reshape"])
def test_a_function_that_mixes_samples_does_not_mix_steps(mix, parallel):
    torch.manual_seed(0)
    field, x, plan = CallableField(lambda t, x: torch.tanh(mix(x))), torch.randn(2, 3), schedule(1.0, steps=1000, span=(0.0, 1.0))
    torch.testing.assert_close(integrate(field, x, plan, parallel=parallel).x, fixed.integrate(field, x, plan).x, rtol=1e-9, atol=1e-9)


def test_a_function_that_cannot_see_all_steps_at_once_is_refused_or_walked():
    field = CallableField(_Normalised())
    x, plan = torch.randn(2, 3), schedule(1.0, steps=1000, span=(0.0, 1.0))
    with pytest.raises(ConfigError, match="parallel=None"):
        integrate(field, x, plan, parallel="picard")
    solution = integrate(field, x, plan, parallel="auto")
    assert solution.iterations is None
    assert "Walked" in solution.reason


class _Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, t, x):
        return torch.tanh(self.norm(x))
