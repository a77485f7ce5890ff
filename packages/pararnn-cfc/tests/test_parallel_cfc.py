"""ParaCfC: the recurrence, its Jacobian, time gaps, precision, stacking, recipes and refusals."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

import pararnn
from pararnn import ConfigError, DTypeError, InputError, NewtonConfig, ParaRNN, ShapeError, Status, newton_apply, verify_agreement
from pararnn.solver.api import cell_problem, run
from pararnn_cfc import ParaCfC, parallel

MIXES = ("input", "diag_h")


def samples(batch=2, length=64, d_in=5, *, dtype=torch.float64, seed=0, gap=None):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, length, d_in - 1, dtype=torch.float64, generator=generator)
    elapsed = 0.05 + torch.rand(batch, length, 1, dtype=torch.float64, generator=generator)
    return torch.cat((features, elapsed if gap is None else torch.full_like(elapsed, gap)), dim=-1).to(dtype)


def formula(cell, x, state=None):
    """The recurrence as the module documentation writes it, step by step."""
    bound = float("inf") if cell.max_recurrent_norm is None else cell.max_recurrent_norm
    # At the bound, where initial weights often are, a weight can be trained; the clamp of torch 2.13 passes that gradient, the one of 2.15 does not.
    u, v = (torch.where(weight.abs() <= bound, weight, weight.clamp(-bound, bound)) for weight in weights(cell))
    rate, candidate = functional.linear(x[..., :-1], cell.W_x.weight, cell.W_x.bias).chunk(2, -1)
    h = torch.zeros(x.shape[0], cell.d_h, dtype=x.dtype) if state is None else state
    states = []
    for t in range(x.shape[1]):
        dt = x[:, t, -1:].clamp(min=1e-4)
        a = torch.exp(-functional.softplus(rate[:, t] + v * h) * dt)
        n = torch.tanh(candidate[:, t] + u * h)
        h = a * h + (1 - a) * n
        states.append(h)
    return torch.stack(states, 1)


def weights(cell):
    return cell.u, cell.v if cell.gate_mix == "diag_h" else torch.zeros_like(cell.u)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=MIXES)
def mix(request):
    return request.param


@pytest.fixture
def cell(mix):
    return ParaCfC(5, 6, gate_mix=mix, dtype=torch.float64)


@pytest.mark.parametrize("interval", [1, 3, 16, "auto", "parallel", 64])
def test_states_and_gradients_equal_the_formula(cell, interval, tolerance):
    x, start = samples().requires_grad_(), torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    sources = (x, start, *cell.parameters())
    states, expected = newton_apply(cell, x, NewtonConfig(interval=interval), h0=start), formula(cell, x, start)
    torch.testing.assert_close(states, expected, **tolerance["states"])
    cotangent = torch.randn_like(states)
    ours, truth = (torch.autograd.grad(out, sources, cotangent) for out in (states, expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


def test_the_jacobian_is_the_derivative_of_the_step(cell):
    state, drive = torch.randn(2, 64, 6, dtype=torch.float64), cell.drive(samples())
    value, jacobian = cell.linearize(state, drive)
    dense = torch.func.vmap(torch.func.vmap(torch.func.jacrev(cell.step), (0, _dims(drive, 0))), (0, _dims(drive, 1)))(state, drive)
    torch.testing.assert_close(value, cell.step(state, drive), rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(jacobian.to_dense(), dense, rtol=1e-12, atol=1e-12)


def _dims(drive, dim):
    return type(drive)(*(0 if leaf.ndim == 3 else None for leaf in drive))


def test_finite_differences_agree(cell):
    small = ParaCfC(3, 2, gate_mix=cell.gate_mix, dtype=torch.float64)
    x, start = samples(1, 5, 3).requires_grad_(), torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, start: newton_apply(small, x, NewtonConfig(interval=2), h0=start), (x, start))
    twice = NewtonConfig(interval=2, derivatives="twice")
    assert torch.autograd.gradgradcheck(lambda x, start: newton_apply(small, x, twice, h0=start), (x, start))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_ten_thousand_tiny_gaps_keep_the_past_as_the_differential_equation_does(cell, dtype):
    cell.to(dtype)
    with torch.no_grad():
        for weight in (cell.u, *((cell.v,) if cell.gate_mix == "diag_h" else ())):
            weight.zero_()
    # Constant features and no recurrent weight: h relaxes to n at a constant rate, for 10,000 * 1e-4 = 1 second.
    x = samples(1, 1, dtype=dtype, gap=1e-4).expand(1, 10_000, 5)
    start = torch.linspace(-1, 1, 6, dtype=dtype).unsqueeze(0)
    rate, candidate = cell.W_x(x[:, 0, :-1]).chunk(2, -1)
    target = torch.tanh(candidate)
    exact = target + (start - target) * torch.exp(-functional.softplus(rate))
    with torch.no_grad():
        last = newton_apply(cell, x, h0=start)[:, -1]
    torch.testing.assert_close(last, exact, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-3)
    assert (last - start).abs().max() > 0.05


def test_a_tiny_gap_keeps_the_state(cell):
    state = torch.randn(2, 6, dtype=torch.float64)
    after = cell.step(state, samples(2, 1, gap=1e-4)[:, 0])
    assert (after - state).abs().max() < 1e-3


def test_a_gap_of_zero_counts_as_the_shortest_one(cell):
    assert torch.equal(newton_apply(cell, samples(gap=0.0)), newton_apply(cell, samples(gap=1e-4)))


def test_an_infinite_gap_leaves_nothing_of_the_past(cell):
    x = samples(length=10)
    x[:, 4, -1] = float("inf")
    starts = torch.zeros(2, 6, dtype=torch.float64), torch.ones(2, 6, dtype=torch.float64)
    forgetful, other = (newton_apply(cell, x, NewtonConfig(interval=2), h0=start) for start in starts)
    assert forgetful.isfinite().all()
    candidate = torch.tanh(cell.W_x(x[:, 4, :-1]).chunk(2, -1)[1] + weights(cell)[0] * forgetful[:, 3])
    torch.testing.assert_close(forgetful[:, 4], candidate, rtol=1e-12, atol=1e-12)
    assert not torch.equal(forgetful[:, 3], other[:, 3])


@pytest.mark.parametrize("solver", ["newton", "sequential", "auto"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("gap", "words"), [(-0.1, r"negative \(-0.1 s at the least\)"), (float("nan"), "NaN"), (-float("inf"), "negative")], ids=str)
def test_negative_and_nan_gaps_are_refused(cell, gap, words, training, solver):
    x = samples()
    x[1, 7, -1] = gap
    with pytest.raises(InputError, match=f"a time gap is {words}"):
        ParaRNN(cell, solver=solver).train(training)(x)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_nan_feature_is_reported_with_its_place(cell, training):
    x = samples()
    x[1, 7, 0] = float("nan")
    with pytest.raises(InputError, match="batch 1, step 7"):
        ParaRNN(cell).train(training)(x)


def test_states_stay_between_minus_one_and_one(cell):
    assert newton_apply(cell, 20 * samples(length=200)).abs().max() <= 1


def test_a_stack_hands_the_same_gap_to_every_layer(cell, tolerance):
    layer, x = ParaRNN(cell, num_layers=3), samples()
    assert [each.d_in for each in layer.layers] == [5, 7, 7]
    assert [each.gate_mix for each in layer.layers] == [cell.gate_mix] * 3
    expected = formula(layer.layers[0], x)
    for above in list(layer.layers)[1:]:
        expected = formula(above, torch.cat((expected, x[..., -1:]), dim=-1))
    torch.testing.assert_close(layer(x), expected, **tolerance["states"])
    assert len({weight.data_ptr() for weight in layer.parameters()}) == len(list(layer.parameters()))


def test_step_takes_a_drive_a_raw_sample_or_a_projection(cell):
    x, state = samples(), torch.randn(2, 6, dtype=torch.float64)
    drive = cell.drive(x)
    now = type(drive)(*(leaf[:, 3] if leaf.ndim == 3 else leaf for leaf in drive))
    packed = cell.project_wx(x)
    assert packed.shape == (2, 64, 18)
    torch.testing.assert_close(cell.step(state, x[:, 3]), cell.step(state, now), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(cell.step(state, wx=packed[:, 3]), cell.step(state, now), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(cell.step(state, wx=cell.project_wx(x[:, 3])), cell.step(state, now), rtol=1e-14, atol=1e-14)
    with pytest.raises(ShapeError, match="step needs the drive of the step"):
        cell.step(state)


def test_a_loop_over_steps_is_the_layer(cell, tolerance):
    x, state, states = samples(), torch.zeros(2, 6, dtype=torch.float64), []
    for packed in cell.project_wx(x).unbind(1):
        state = cell.step(state, wx=packed)
        states.append(state)
    torch.testing.assert_close(ParaRNN(cell)(x), torch.stack(states, 1), **tolerance["states"])


def test_the_first_snippet_of_the_reference_page_runs():
    import torch

    from pararnn import ParaCfC

    cell = ParaCfC(d_in=9, d_h=16)  # 8 features + dt
    h = torch.zeros(2, 16)
    feat = torch.randn(2, 8)
    dt = 0.05 + torch.rand(2, 1)
    h = cell.step(h, torch.cat((feat, dt), dim=-1))

    assert h.shape == (2, 16)


def test_the_second_snippet_of_the_reference_page_runs(capsys):
    from pararnn import ParaCfC, ParaRNN, verify_agreement

    m = ParaRNN(ParaCfC(9, 16))
    feat = torch.randn(2, 64, 8)
    dt = 0.05 + torch.rand(2, 64, 1)
    print(verify_agreement(m, torch.cat((feat, dt), dim=-1)).to_dict())  # noqa: T201

    assert "'ok': True" in capsys.readouterr().out


def test_the_class_is_the_same_object_under_both_imports():
    assert pararnn.ParaCfC is ParaCfC


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_keeps_its_states_in_float32(cell, dtype, tolerance):
    half = copy.deepcopy(cell).to(dtype)
    x = samples(dtype=dtype).requires_grad_()
    output, states = ParaRNN(half, solver="newton", return_hidden=True)(x)
    assert output.dtype == dtype
    assert states[0].dtype == torch.float32
    exact = formula(copy.deepcopy(half).double(), x.detach().double())
    torch.testing.assert_close(output.double(), exact, **tolerance["states"])
    output.sum().backward()
    assert x.grad.dtype == dtype
    assert all(weight.grad.isfinite().all() for weight in half.parameters())
    assert verify_agreement(half, x).ok


def test_autocast_rounds_the_projection_only(cell):
    single, x = copy.deepcopy(cell).float(), samples(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parallel_states = newton_apply(single, x, NewtonConfig(interval=4))
        walked = newton_apply(single, x, NewtonConfig(interval=64))
    assert parallel_states.dtype == torch.float32
    torch.testing.assert_close(parallel_states, walked, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parallel_states, formula(single, x), rtol=2e-2, atol=2e-2)


def test_recurrent_weights_outside_their_limit_act_as_if_at_it(cell):
    outside, inside = copy.deepcopy(cell), copy.deepcopy(cell)
    with torch.no_grad():
        outside.u.copy_(torch.tensor([0.7, -0.9, 0.5, -0.5, 3.0, 0.1]))
        inside.u.copy_(outside.u.clamp(-0.5, 0.5))
    assert torch.equal(newton_apply(outside, samples()), newton_apply(inside, samples()))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_recurrent_weight_outside_its_limit_moves_only_where_descent_leads_back(sign):
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples()
    with torch.no_grad():
        cell.u.copy_(torch.tensor([0.7, -0.7, 0.7, -0.7, 0.3, -0.3]))
    (gradient,) = torch.autograd.grad(sign * newton_apply(cell, x).square().sum(), cell.u)
    clamped = cell.u.detach().clamp(-0.5, 0.5).requires_grad_()
    free = ParaCfC(5, 6, max_recurrent_norm=None, dtype=torch.float64)
    free.load_state_dict(cell.state_dict())
    nn.utils.parametrize.register_parametrization(free, "u", Fixed(clamped))
    (plain,) = torch.autograd.grad(sign * newton_apply(free, x).square().sum(), clamped)
    leads_back = (cell.u.abs() <= 0.5) | (plain * cell.u > 0)
    torch.testing.assert_close(gradient, torch.where(leads_back, plain, 0), rtol=1e-9, atol=1e-12)
    assert leads_back[4:].all()


class Fixed(nn.Module):
    """Stands in for a weight."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, _):
        return self.value


def test_a_weight_that_an_optimiser_pushed_out_can_come_back():
    cell, x = ParaCfC(5, 6, dtype=torch.float64), samples()
    with torch.no_grad():
        cell.u.fill_(0.8)
        target = formula(ParaCfC(5, 6, dtype=torch.float64), x)
        cell.W_x.weight.mul_(0.1)
    optimiser = torch.optim.Adam(cell.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        (newton_apply(cell, x) - target).square().mean().backward()
        optimiser.step()
    assert (cell.u < 0.5).any()


@pytest.mark.parametrize("interval", [1, 16, 64, "auto", "parallel"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_strong_recurrent_weights_without_a_limit_end_right(cell, interval, dtype):
    wild = ParaCfC(5, 6, gate_mix=cell.gate_mix, max_recurrent_norm=None, dtype=dtype)
    with torch.no_grad():
        wild.u.fill_(4.0)
    x = samples(2, 1024, dtype=dtype)
    config = NewtonConfig(interval=interval)
    with torch.no_grad():
        result = run(cell_problem(wild, x, config), config)
        assert (result.states - formula(wild, x)).abs().max() <= 1e-5
    assert result.status in (Status.CONVERGED, Status.REPAIRED, Status.WALKED)
    assert bool(result.converged.all()) == (result.status is not Status.REPAIRED)


def test_the_recipe_is_a_first_budget_that_can_be_overridden(cell, tolerance):
    assert parallel.cfc_auto_newton_iters == {1: 3}
    assert [cell.newton_iters(length) for length in (0, 1, 64, 100_000)] == [3, 3, 3, 3]
    assert cell_problem(cell, samples(), NewtonConfig()).budget == 3
    expected = formula(cell, samples())
    for options in ({"max_iters": None}, {"max_iters": 1}, {"max_iters": 8}, {"newton_iters_by_t": {1: 1, 32: 6}}):
        torch.testing.assert_close(newton_apply(cell, samples(), NewtonConfig(interval=4, **options)), expected, **tolerance["states"])


def test_the_names_of_the_weights_are_the_documented_ones(cell):
    assert set(cell.state_dict()) == {"u", "W_x.weight", "W_x.bias"} | ({"v"} if cell.gate_mix == "diag_h" else set())
    assert set(ParaRNN(cell).state_dict()) == {f"layers.0.{name}" for name in cell.state_dict()}
    assert (cell.state_slots, cell.jac_structure, cell.state_size) == (1, "diag", 6)


@pytest.mark.parametrize("save", ["state_dict", "deepcopy", "pickle", "safetensors"])
def test_a_cell_survives_being_copied_and_saved(cell, save, tmp_path):
    x = samples()
    twin = ParaCfC(5, 6, gate_mix=cell.gate_mix, dtype=torch.float64)
    if save == "state_dict":
        twin.load_state_dict(cell.state_dict())
    elif save == "deepcopy":
        twin = copy.deepcopy(cell)
    elif save == "pickle":
        twin = pickle.loads(pickle.dumps(cell))
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_model(cell, tmp_path / "cell.safetensors")
        safetensors.load_model(twin, tmp_path / "cell.safetensors")
    assert torch.equal(newton_apply(twin, x), newton_apply(cell, x))


def test_fresh_weights_lie_inside_their_limit_and_differ():
    cell = ParaCfC(3, 400, gate_mix="diag_h", max_recurrent_norm=0.05)
    assert max(cell.u.abs().max(), cell.v.abs().max()) <= 0.05
    before = cell.u.clone()
    cell.reset_parameters()
    assert not torch.equal(cell.u, before)


def test_packed_sequences_equal_each_alone(cell, tolerance):
    x, offsets = samples(1), [0, 20, 20, 64]
    states = newton_apply(cell, x, NewtonConfig(interval=4), cu_seqlens=torch.tensor(offsets))
    torch.testing.assert_close(states, torch.cat((formula(cell, x[:, :20]), formula(cell, x[:, 20:])), dim=1), **tolerance["states"])


def test_an_ensemble_under_vmap_equals_its_members(mix, tolerance):
    members = [ParaRNN(ParaCfC(5, 6, gate_mix=mix, dtype=torch.float64), config=NewtonConfig(interval=4)) for _ in range(3)]
    x = samples()
    weights, buffers = torch.func.stack_module_state(members)
    shell = copy.deepcopy(members[0])
    outputs = torch.func.vmap(lambda weights, buffers: torch.func.functional_call(shell, (weights, buffers), (x,)))(weights, buffers)
    torch.testing.assert_close(outputs, torch.stack([formula(member.layers[0], x) for member in members]), **tolerance["states"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"d_in": 1, "d_h": 4}, "d_in must be an int of at least 2, got 1; the last input channel is the time gap"),
        ({"d_in": 5, "d_h": 0}, "d_h must be an int of at least 1, got 0"),
        ({"d_in": 5.0, "d_h": 4}, "d_in must be an int"),
        ({"d_in": True, "d_h": 4}, "d_in must be an int"),
        ({"d_in": 5, "d_h": 4, "gate_mix": "dense"}, "gate_mix must be 'input' or 'diag_h'"),
        ({"d_in": 5, "d_h": 4, "max_recurrent_norm": -1.0}, "max_recurrent_norm must be None or a number"),
        ({"d_in": 5, "d_h": 4, "max_recurrent_norm": float("nan")}, "max_recurrent_norm must be None or a number"),
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        ParaCfC(**arguments)


@pytest.mark.parametrize("apply", [newton_apply, lambda cell, x: ParaRNN(cell).eval()(x), ParaCfC.project_wx], ids=["solve", "layer", "wx"])
@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (samples(d_in=6), ShapeError, "x ends in 6 channels, but d_in=5: 4 features and the time gap last"),
        (samples(dtype=torch.float32), DTypeError, r"x is torch.float32 and the cell torch.float64; convert one of them"),
        (samples().long(), DTypeError, "x must be floating point, got torch.int64"),
        (samples().to(torch.complex128), DTypeError, "x must be floating point, got torch.complex128"),
    ],
    ids=["width", "float32", "int", "complex"],
)
def test_inputs_that_do_not_fit_are_refused(cell, x, error, words, apply):
    with pytest.raises(error, match=words):
        apply(cell, x)


def test_a_float64_input_of_a_float32_cell_is_refused():
    with pytest.raises(DTypeError, match=r"x.to\(torch.float32\)"):
        newton_apply(ParaCfC(5, 6), samples())
