"""Cells on which Newton's method fails end with the states of the loop, and say what happened."""

import copy

import pytest
import torch
from toy_cells import DenseRNN, DiagonalGRU, SignLatch, Tanh, loop, make_cell

from pararnn import ConvergenceError, Dense, NewtonConfig, Status, newton_apply, sequential_apply, solve
from pararnn.conformance.tolerances import tolerance as tolerance_of
from pararnn.solver.api import cell_problem, run

INTERVALS = (1, 16, 64, "auto", "parallel")


def sign_flips(dtype):
    signs = torch.randint(0, 2, (2, 1024, 1)).to(dtype) * 2 - 1
    return SignLatch(1, dtype=dtype), signs, torch.ones(2, 1, dtype=dtype)


def slow_drift(dtype):
    return Tanh(1, weight=1.0, input_weight=0.0, bias=1e-3, dtype=dtype), torch.zeros(1, 8192, 1, dtype=dtype), None


def wild_gru(dtype):
    return DiagonalGRU(3, 4, scale=3.0, dtype=dtype), torch.randn(2, 4096, 3, dtype=dtype), None


def weakly_driven_latch(dtype):
    return Tanh(3, weight=1.5, input_weight=0.1, dtype=dtype), torch.randn(2, 4096, 3, dtype=dtype), None


def strongly_driven_latch(dtype):
    return Tanh(3, weight=2.5, dtype=dtype), torch.randn(2, 2048, 3, dtype=dtype), None


def chaos(dtype):
    return DenseRNN(3, 8, scale=4.0, dtype=dtype), torch.randn(2, 512, 3, dtype=dtype), None


def overflowing_guess(dtype):
    """A cell without bounds whose one-step guess is far from its states."""
    cell = Tanh(3, weight=1.5, input_weight=0.1, dtype=dtype)
    cell.state_bounds = None
    return cell, torch.randn(2, 1024, 3, dtype=dtype), None


CASES = (sign_flips, slow_drift, wild_gru, weakly_driven_latch, strongly_driven_latch, chaos, overflowing_guess)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def truth():
    """The loop's states of a case, walked once for all intervals."""
    known = {}

    def of(case, dtype):
        if (case, dtype) not in known:
            torch.manual_seed(0)
            cell, x, start = case(dtype)
            with torch.no_grad():
                known[case, dtype] = cell, x, start, loop(cell, x, start)
        return known[case, dtype]

    return of


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_hard_cells_end_at_the_states_of_the_loop(case, dtype, interval, truth):
    cell, x, start, expected = truth(case, dtype)
    config = NewtonConfig(interval=interval, backend="torch")
    with torch.no_grad():
        result = run(cell_problem(cell, x, config, h0=start), config)
    # Also where a chaotic stretch amplifies rounding, and the float32 loop itself is further than this from the exact states.
    assert (result.states - expected).abs().max() <= 1e-5
    assert result.status in (Status.CONVERGED, Status.REPAIRED, Status.WALKED)
    assert bool(result.converged.all()) == (result.status is not Status.REPAIRED)


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_hard_cells_end_as_near_to_the_exact_states_as_the_loop_whoever_solves(case, dtype, interval, truth):
    cell, x, start, ours = truth(case, dtype)
    exact = copy.deepcopy(cell).double()
    exact.state_dtype = torch.float64
    config = NewtonConfig(interval=interval)
    with torch.no_grad():
        result = run(cell_problem(cell, x, config, h0=start), config)
        expected = ours if dtype is torch.float64 else loop(exact, x.double(), None if start is None else start.double())
    # Kernels round otherwise than PyTorch, and where rounding grows, two right answers part as far from each other as from the exact one.
    assert (result.states - expected).abs().max() <= max(1e-5, 2 * (ours - expected).abs().max())
    assert result.status in (Status.CONVERGED, Status.REPAIRED, Status.WALKED)
    assert bool(result.converged.all()) == (result.status is not Status.REPAIRED)


def test_the_record_of_a_stalled_solve_tells_what_happened(truth):
    cell, x, start, _ = truth(sign_flips, torch.float64)
    config = NewtonConfig(interval=16, backend="torch")
    with torch.no_grad():
        result = run(cell_problem(cell, x, config, h0=start), config)
    assert result.status is Status.REPAIRED
    assert len(result.updates) == result.iterations >= 2
    assert not result.converged.any()
    assert "stalled" in result.explain()
    told = result.explain()
    assert "interval=16 was asked for" in told
    assert [interval for interval, _ in result.attempts] == [16, 64]
    assert sum(count for _, count in result.attempts) == result.iterations
    assert [line.partition(",")[0] for line in told.splitlines() if "largest updates" in line] == [
        f"{count} iterations with intervals of {interval} steps" for interval, count in result.attempts
    ]
    assert told.endswith("What was left was walked, 1024 steps one after the other.")
    assert result.raise_for_status() is result


def test_a_stalled_solve_that_longer_intervals_repaired_claims_no_walk(truth):
    cell, x, start, _ = truth(slow_drift, torch.float64)
    config = NewtonConfig(interval=1, backend="torch")
    with torch.no_grad():
        result = run(cell_problem(cell, x, config, h0=start), config)
    assert result.status is Status.REPAIRED
    assert result.walked == 0
    assert [interval for interval, _ in result.attempts] == [1, 4]
    first, last = (line for line in result.explain().splitlines() if "largest updates" in line)
    assert first.startswith(f"{result.attempts[0][1]} iterations with intervals of 1 step, largest updates: ")
    assert last.startswith(f"{result.attempts[1][1]} iterations with intervals of 4 steps, largest updates: ")
    assert last.endswith(f"{result.updates[-1]:.1e}.")
    assert "was walked" not in result.explain()


@pytest.mark.parametrize("case", [sign_flips, chaos, strongly_driven_latch], ids=lambda case: case.__name__)
def test_raise_on_stall_raises_with_the_record(case, truth):
    cell, x, start, _ = truth(case, torch.float64)
    config = NewtonConfig(interval=4, on_stall="raise")
    with torch.no_grad(), pytest.raises(ConvergenceError, match=r"stalled after \d+ iterations with intervals of 4 steps") as caught:
        run(cell_problem(cell, x, config, h0=start), config)
    assert len(caught.value.data["updates"]) >= 2
    assert caught.value.data["plan"].interval == 4


def test_raise_on_stall_leaves_an_easy_cell_alone(tolerance):
    cell, x = make_cell("diagonal GRU"), torch.randn(2, 200, 3, dtype=torch.float64)
    config = NewtonConfig(interval=4, on_stall="raise")
    result = run(cell_problem(cell, x, config), config)
    assert result.status is Status.CONVERGED
    torch.testing.assert_close(result.states, loop(cell, x), **tolerance["states"])


@pytest.mark.parametrize("interval", [1, 8, 64, "auto"])
def test_a_residual_that_hides_a_large_error_does_not_end_the_iteration(interval, truth):
    # The slow drift has a residual below 1e-3 at the very first guess while its states are wrong by 0.14.
    cell, x, _, expected = truth(slow_drift, torch.float64)
    config = NewtonConfig(interval=interval)
    with torch.no_grad():
        states = run(cell_problem(cell, x, config), config).states
    torch.testing.assert_close(states, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("interval", [1, 8, "auto"])
def test_gradients_of_a_repaired_solve_are_those_of_the_loop(interval, tolerance):
    cell, x, start = sign_flips(torch.float64)
    x, start = (0.4 * x[:, :200]).requires_grad_(), start.requires_grad_()
    config = NewtonConfig(interval=interval)
    states = run(cell_problem(cell, x, config, h0=start), config).states
    ours = torch.autograd.grad(states.square().sum(), (x, start))
    truth = torch.autograd.grad(loop(cell, x, start).square().sum(), (x, start))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


@pytest.mark.parametrize("interval", [1, 4, 200, "auto"])
def test_a_recurrence_that_explodes_says_so(interval):
    class Explodes(Tanh):
        state_bounds = None

        def step(self, state, drive):
            return 30 * state * state + drive + 2

    cell, x = Explodes(3), torch.randn(2, 200, 3, dtype=torch.float64)
    config = NewtonConfig(interval=interval)
    with torch.no_grad():
        result = run(cell_problem(cell, x, config), config)
    assert result.status is Status.NOT_FINITE
    assert torch.equal(result.states.isfinite(), loop(cell, x).isfinite())
    with pytest.raises(ConvergenceError, match="infinity or NaN"):
        result.raise_for_status()


def easy_beside_hard(hard):
    """A row that converges at once, above rows of `hard` scale: the content of a row decides how hard it is."""
    quiet = 0.3 * torch.randn(1, 400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.cat((quiet, hard * torch.randn(2, 400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))))


class Threshold(Tanh):
    """Contracting while the drive is small, a latch that flips sign where it is large."""

    def step(self, state, drive):
        return torch.tanh(torch.where(drive.abs() > 1.5, 4 * drive.sign(), 0.5) * state + 0.3 * drive)


@pytest.mark.parametrize("interval", [1, 4, 16, "auto", "parallel"])
def test_an_easy_sequence_beside_hard_ones_keeps_its_bits(interval):
    cell, config = Threshold(3), NewtonConfig(interval=interval)
    with torch.no_grad():
        calm, stormy = (run(cell_problem(cell, easy_beside_hard(hard), config), config) for hard in (0.3, 3.0))
    assert torch.equal(calm.states[0], stormy.states[0])
    if interval in (1, 4):
        assert calm.status is Status.CONVERGED
        assert stormy.status is Status.REPAIRED
        assert stormy.converged.tolist() == [True, False, False]


def test_hard_sequences_beside_others_keep_their_bits():
    changed = []
    for seed in range(6):
        torch.manual_seed(seed)
        cell, x = DiagonalGRU(3, 4, scale=2.5), torch.randn(3, 300, 3, dtype=torch.float64)
        other = torch.cat((x[:1], 3 * torch.randn(1, 300, 3, dtype=torch.float64), 0.01 * x[2:]))
        for config in (NewtonConfig(interval=1), NewtonConfig(interval=4), NewtonConfig(interval=16)):
            with torch.no_grad():
                first, second = (run(cell_problem(cell, inputs, config), config).states[0] for inputs in (x, other))
            torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)
            changed += [] if torch.equal(first, second) else [(seed, config.interval)]
    assert changed == []


def test_the_kind_of_repair_of_a_sequence_does_not_depend_on_its_neighbours():
    changed = []
    for seed in range(15):
        torch.manual_seed(seed)
        cell, x = DiagonalGRU(3, 4, scale=3.0), torch.randn(3, 300, 3, dtype=torch.float64)
        other = torch.cat((x[:1], 3 * torch.randn(1, 300, 3, dtype=torch.float64), 0.01 * x[2:]))
        for config in (NewtonConfig(interval=4), NewtonConfig(interval=16)):
            with torch.no_grad():
                first, second = (run(cell_problem(cell, inputs, config), config).states[0] for inputs in (x, other))
            changed += [] if torch.equal(first, second) else [(seed, config.interval)]
    assert changed == []


@pytest.mark.parametrize(("seed", "dtype", "shape", "interval"), [(29, torch.float64, (3, 300, 3), 64), (0, torch.float32, (2, 4096, 3), "auto")])
def test_errors_that_grow_inside_an_interval_are_seen(seed, dtype, shape, interval):
    torch.manual_seed(seed)
    cell, x = DiagonalGRU(3, 4, scale=3.0, dtype=dtype), torch.randn(shape, dtype=dtype)
    # Kernels round otherwise than the loop, which this cell makes visible.
    config = NewtonConfig(interval=interval, backend="torch")
    with torch.no_grad():
        result = run(cell_problem(cell, x, config), config)
    torch.testing.assert_close(result.states, sequential_apply(cell, x), **tolerance_of(dtype, "states"))


@pytest.mark.parametrize("seed", range(4))
def test_wild_weights_in_float32_end_at_the_states_of_the_loop(seed):
    torch.manual_seed(seed)
    cell = DiagonalGRU(3, 4, dtype=torch.float32)
    for weight in cell.parameters():
        torch.nn.init.normal_(weight, std=3.0)
    x = torch.randn(2, 4096, 3)
    with torch.no_grad():
        assert (newton_apply(cell, x, NewtonConfig(backend="torch")) - sequential_apply(cell, x)).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_dense_step_that_keeps_the_size_of_errors_is_not_taken_for_one_that_grows_them(dtype):
    torch.manual_seed(0)
    rotation = 0.99 * torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0].to(dtype)
    drive, initial = 0.1 * torch.randn(1, 1000, 32, dtype=dtype), torch.zeros(1, 32, dtype=dtype)
    with torch.no_grad():
        result = solve(lambda state, z: torch.tanh(state @ rotation.mT + z), Dense, drive, initial, config=NewtonConfig(interval=16))
    assert result.status is Status.CONVERGED
