"""Rows of a batch that begin, pause, end or have no loss, each at its own time."""

import pytest
import torch

from pararnn_cola import COLA, TBPTT1, LeakyLayer, Network, Readout

TIME, ROWS = 24, 4
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


@pytest.fixture
def events():
    """For each step and row `(time, rows)`: whether a sequence begins before it, whether it exists, and the weight of its loss."""
    generator = torch.Generator().manual_seed(11)
    begins, present, unweighted = (torch.rand(TIME, ROWS, generator=generator) for _ in range(3))
    weights = torch.rand(TIME, ROWS, generator=generator, dtype=torch.float64) + 0.2
    return begins < 0.15, present > 0.25, weights * (unweighted > 0.2)


def walk(learner, inputs, targets, begins, present, weights):
    outputs = []
    for time in range(TIME):
        if time:
            learner.reset(rows=begins[time])
        outputs.append(learner.step(inputs[time], targets[time], weights[time], present[time]).output)
    learner.flush()
    return torch.stack(outputs)


def cola_row_by_row(network, inputs, targets, begins, present, weights, *, rho=0.99, margin=0.1, bound=0.99):
    """COLA as a plain loop over rows, each with a previous half of its own; means are over the rows that make a pair."""
    (layer,), readout = network.recurrent, network.readout
    recurrent, feeding, b, reading, c = (p.detach() for p in (layer.weight_hh, layer.weight_ih, layer.bias, readout.weight, readout.bias))
    gradients = [torch.zeros_like(p) for p in (recurrent, feeding, b, reading, c)]
    over, under, above, below, alpha, mu = (torch.zeros_like(b) for _ in range(6))
    h, previous = [torch.zeros_like(b) for _ in range(ROWS)], [None] * ROWS
    for time in range(TIME):
        now = {}
        for row in range(ROWS):
            if time and begins[time, row]:
                h[row], previous[row] = torch.zeros_like(b), None
            if not present[time, row]:
                continue
            u, weight = inputs[time, row], weights[time, row]
            after = torch.tanh(recurrent @ h[row] + feeding @ u + b)
            if weight > 0:
                p = 1 - after**2
                e = weight * 2 * (reading @ after + c - targets[time, row]) / len(c)
                d = p * (reading.T @ e)
                used = d / (1 - (mu * p).clamp(-(1 - margin), 1 - margin))
                now[row] = (d, p, used)
                parts = (torch.outer(used, h[row]), torch.outer(used, u), used, torch.outer(e, after), e)
                for gradient, part in zip(gradients, parts, strict=True):
                    gradient += part / ROWS
            else:
                now[row] = None
            h[row] = after
        pairs = [(previous[row], now[row]) for row in now if previous[row] is not None and now[row] is not None]
        if pairs:
            over = rho * over + (1 - rho) * sum(new[2] * old[2] for old, new in pairs) / len(pairs)
            under = rho * under + (1 - rho) * sum(old[2] * old[2] for old, _ in pairs) / len(pairs)
            alpha = (over / under).clamp(-bound, bound)
            a = [alpha * old[0] * new[1] - new[0] * old[1] for old, new in pairs]
            right = [alpha * old[0] - new[0] for old, new in pairs]
            above = rho * above + (1 - rho) * sum(x * y for x, y in zip(a, right, strict=True)) / len(pairs)
            below = rho * below + (1 - rho) * sum(x * x for x in a) / len(pairs)
            mu = above / below
        for row, half in now.items():
            previous[row] = half
    return gradients, alpha, mu


def test_cola_pools_over_live_rows_and_pairs_each_row_with_its_own_past(network, stream, events):
    inputs, targets = stream(TIME, ROWS)
    begins, present, weights = events
    learner = COLA(net := network(), update="accumulate")
    walk(learner, inputs, targets, begins, present, weights)
    gradients, alpha, mu = cola_row_by_row(net, inputs, targets, begins, present, weights)
    torch.testing.assert_close([p.grad for p in net.parameters()], gradients, **CLOSE)
    torch.testing.assert_close(learner.statistics[0].alpha, alpha, **CLOSE)
    torch.testing.assert_close(learner.statistics[0].mu, mu, **CLOSE)


def test_rows_that_begin_pause_and_end_give_what_each_gives_alone(rule, network, stream, events):
    inputs, targets = stream(TIME, ROWS)
    begins, present, weights = events
    learner = rule(net := network(), update="accumulate")
    outputs = walk(learner, inputs, targets, begins, present, weights)
    expected = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for row in range(ROWS):
        alone = rule(single := network(), update="accumulate")
        for time in range(TIME):
            if time and begins[time, row]:
                alone.reset()
            if present[time, row]:
                u, y, weight = inputs[time, [row]], targets[time, [row]], float(weights[time, row])
                torch.testing.assert_close(outputs[time, [row]], alone.step(u, y, weight).output, **CLOSE)
        alone.flush()
        for name, p in single.named_parameters():
            expected[name] += p.grad / ROWS
    if rule.separable:
        torch.testing.assert_close({name: p.grad for name, p in net.named_parameters()}, expected, **CLOSE)


@pytest.mark.parametrize("units", [ROWS, ROWS + 2], ids="H{}".format)
def test_a_leak_for_each_unit_and_one_for_all_learn_the_same_in_rows_that_pause(units, stream, events):
    inputs, targets = stream(TIME, ROWS)
    found = []
    for leak in (0.8, torch.full((units,), 0.8, dtype=torch.float64)):
        layer = LeakyLayer(2, units, leak=leak, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        readout = Readout(units, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        learner = COLA(Network(layer, readout), update="accumulate")
        walk(learner, inputs, targets, *events)
        found.append([p.grad for p in learner.network.parameters()])
    torch.testing.assert_close(found[0], found[1], **CLOSE)


def test_the_first_step_of_a_sequence_makes_no_pair_with_the_last_of_the_one_before(network, stream, feed):
    inputs, targets = stream(12)
    learner = COLA(network(), update="accumulate")
    feed(learner, (inputs, targets), 0, 8)
    before = learner.statistics[0].N.clone(), learner.statistics[0].M.clone(), learner.statistics[0].alpha.clone()
    learner.reset()
    feed(learner, (inputs, targets), 8, 9)
    statistics = learner.statistics[0]
    assert all(torch.equal(one, two) for one, two in zip(before, (statistics.N, statistics.M, statistics.alpha), strict=True))
    feed(learner, (inputs, targets), 9, 10)
    assert not torch.equal(before[1], statistics.M)


def test_resetting_every_row_by_a_mask_is_a_reset(rule, network, stream, feed, equal):
    data = stream(16)
    one, two = rule(network(), update="accumulate"), rule(network(), update="accumulate")
    for learner, rows in ((one, None), (two, torch.ones(3, dtype=torch.bool))):
        feed(learner, data, 0, 8)
        learner.flush()
        learner.reset(rows)
        results = feed(learner, data, 8)
        learner.flush()
        assert results[0].output.isfinite().all()
    torch.testing.assert_close([p.grad for p in one.network.parameters()], [p.grad for p in two.network.parameters()], **CLOSE)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_what_stands_in_rows_without_a_step_is_ignored_to_the_bit(rule, loss, network, stream, events, equal):
    inputs, targets = stream(TIME, ROWS)
    _, present, weights = events
    absent = ~present.unsqueeze(-1)
    classes = targets.argmax(-1)
    clean = classes if loss == "cross_entropy" else targets
    dirty = classes.masked_fill(~present, -100) if loss == "cross_entropy" else targets.masked_fill(absent, torch.nan)
    learners = []
    for u, y, w in ((inputs, clean, weights), (inputs.masked_fill(absent, torch.nan), dirty, weights.masked_fill(~present, torch.nan))):
        learners.append(rule(network(), loss=loss, lr=0.05))
        for time in range(TIME):
            learners[-1].step(u[time], y[time], w[time], present[time])
    assert equal(learners[0].state_dict(), learners[1].state_dict())
    assert all(p.isfinite().all() for p in learners[0].network.parameters())


@pytest.mark.parametrize("loss", ["mse", "cross_entropy", "own"])
def test_targets_in_rows_with_weight_zero_are_ignored_to_the_bit(rule, loss, network, stream, events, equal):
    inputs, targets = stream(TIME, ROWS)
    weights = events[2]
    dead = weights == 0
    classes = targets.argmax(-1)
    clean = classes if loss == "cross_entropy" else targets
    dirty = classes.masked_fill(dead, -100) if loss == "cross_entropy" else targets.masked_fill(dead.unsqueeze(-1), torch.nan)
    chosen = (lambda output, target: (output - target).abs().pow(1.5).mean(-1)) if loss == "own" else loss
    learners = []
    for y in (clean, dirty):
        learners.append(rule(network(), loss=chosen, lr=0.05))
        for time in range(TIME):
            learners[-1].step(inputs[time], y[time], weights[time])
    assert equal(learners[0].state_dict(), learners[1].state_dict())


def test_rows_without_a_step_keep_their_state(rule, network, stream, feed):
    inputs, targets = stream(8)
    learner = rule(network(), lr=0.05)
    feed(learner, (inputs, targets), 0, 5)
    before = learner.states[0][0].clone()
    mask = torch.tensor([True, False, True])
    for target in (targets[5], None):
        learner.step(inputs[5], target, mask=mask)
        assert torch.equal(learner.states[0][0][1], before[1])
        assert not torch.equal(learner.states[0][0][0], before[0])


def test_the_loss_is_the_mean_over_the_whole_batch_of_weighted_losses(rule, network, stream):
    inputs, targets = stream(1)
    weight, mask = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64), torch.tensor([True, True, False])
    result = rule(network()).step(inputs[0], targets[0], weight, mask)
    losses = (result.output - targets[0]).square().mean(-1)
    torch.testing.assert_close(result.loss, (losses * weight * mask).sum() / 3)


def test_a_number_as_weight_is_a_weight_of_all_rows(rule, network, stream):
    data = stream(6)
    one, two = rule(network(), update="accumulate"), rule(network(), update="accumulate")
    for u, y in zip(*data, strict=True):
        one.step(u, y, 0.3)
        two.step(u, y, torch.full((3,), 0.3, dtype=torch.float64))
    one.flush()
    two.flush()
    torch.testing.assert_close([p.grad for p in one.network.parameters()], [p.grad for p in two.network.parameters()], **CLOSE)


@pytest.mark.parametrize("without", [{"y": None}, {"weight": 0.0}], ids=["no-target", "weight-0"])
def test_a_step_without_a_loss_answers_and_moves_nothing_but_the_state(rule, without, network, stream, feed, snapshot, equal):
    inputs, targets = stream(8)
    optimizer = torch.optim.Adam((net := network()).parameters(), lr=0.01)
    learner = rule(net, optimizer=optimizer)
    feed(learner, (inputs, targets), 0, 6)
    learner.apply()
    before, state = snapshot(learner), learner.states[0][0].clone()
    result = learner.step(**({"u": inputs[6], "y": targets[6]} | without))
    assert result.loss is None
    assert result.output.shape == targets[6].shape
    assert equal(snapshot(learner)["weights"], before["weights"])
    assert equal(snapshot(learner)["gradients"], before["gradients"])
    assert equal(snapshot(learner)["optimizer"], before["optimizer"])
    assert not torch.equal(learner.states[0][0], state)


def test_cola_makes_no_pair_across_a_step_without_a_loss_except_in_rows_that_pause(network, stream):
    inputs, targets = stream(4)
    mask = torch.tensor([True, True, False])
    learner = COLA(network(), update="accumulate")
    learner.step(inputs[0], targets[0])
    learner.step(inputs[1], mask=mask)
    learner.step(inputs[2], targets[2])
    alone = COLA(network(), update="accumulate")
    alone.step(inputs[0][2:], targets[0][2:])
    alone.step(inputs[2][2:], targets[2][2:])
    torch.testing.assert_close(learner.statistics[0].mu, alone.statistics[0].mu, **CLOSE)
    assert alone.statistics[0].M.any()


def test_a_weight_tensor_without_any_live_row_changes_no_statistics(network, stream, feed):
    inputs, targets = stream(8)
    learner = COLA(network())
    feed(learner, (inputs, targets), 0, 6)
    before = {name: tensor.clone() for name, tensor in learner.tensors().items() if "previous" not in name and "valid" not in name}
    weights = [p.clone() for p in learner.network.parameters()]
    result = learner.step(inputs[6], targets[6], torch.zeros(3, dtype=torch.float64))
    assert result.loss == 0
    assert all(torch.equal(learner.tensors()[name], tensor) for name, tensor in before.items() if not name.startswith("state"))
    assert all(torch.equal(one, two) for one, two in zip(weights, learner.network.parameters(), strict=True))


def test_a_hidden_gain_of_rows_that_pause_is_no_different(network, stream, events):
    inputs, targets = stream(TIME, ROWS)
    begins, present, weights = events
    plain, scaled = TBPTT1(network(), update="accumulate"), TBPTT1(network(), update="accumulate", hidden_gain=3.0)
    walk(plain, inputs, targets, begins, present, weights)
    walk(scaled, inputs, targets, begins, present, weights)
    one, two = (dict(learner.network.named_parameters()) for learner in (plain, scaled))
    torch.testing.assert_close(two["layers.0.weight_hh"].grad, 3 * one["layers.0.weight_hh"].grad, **CLOSE)
    torch.testing.assert_close(two["readout.weight"].grad, one["readout.weight"].grad, **CLOSE)
