"""What a learner holds between steps: no graph beyond its window, and nothing that belongs to the user."""

import pytest
import torch

from pararnn_cola import BPTT, RTRL, TBPTT, UORO, StreamError


def tensors_in(value, seen):
    """All tensors inside of nested containers and records."""
    if id(value) in seen or isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part, seen)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part, seen)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value), seen)


def nodes(learner):
    """The number of graph nodes that hang on anything in `learner`."""
    waiting, found = [tensor.grad_fn for tensor in tensors_in(vars(learner), set()) if tensor.grad_fn is not None], set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(before for before, _ in node.next_functions if before is not None)
    return len(found)


RULES = {
    "BPTT": BPTT,
    "TBPTT-live": lambda network: TBPTT(network, 4),
    "TBPTT-rerun": lambda network: TBPTT(network, 2, 5),
    "RTRL": RTRL,
    "UORO": UORO,
}


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request):
    return request.param


def test_the_graph_of_bptt_grows_until_it_is_flushed(network, stream, feed):
    learner = feed(BPTT(network()), stream(3))
    short = nodes(learner)
    feed(learner, stream(7))
    assert nodes(learner) > 2 * short
    states = learner.states
    learner.flush()
    assert nodes(learner) == 0
    assert learner.states is states


@pytest.mark.parametrize(("k1", "k2", "most"), [(4, 4, 100), (2, 5, 0)], ids=["live", "rerun"])
def test_the_graph_of_tbptt_is_as_large_after_many_windows_as_after_one(network, stream, feed, k1, k2, most):
    learner = TBPTT(network(), k1, k2, lr=0.01)
    feed(learner, stream(k1 + 3 % k1))
    early, kept = nodes(learner), sum(tensor.numel() for tensor in learner.tensors().values())
    for _ in range(25):
        feed(learner, stream(2 * k1))
    assert nodes(learner) == early <= most
    late = sum(tensor.numel() for tensor in learner.tensors().values())
    assert late == kept or k2 > k1
    feed(learner, stream(8 * k1))
    assert sum(tensor.numel() for tensor in learner.tensors().values()) == late


@pytest.mark.parametrize("cls", [RTRL, UORO])
def test_rules_that_go_forward_hold_no_graph_at_all(cls, network, stream, feed):
    learner = cls(network())
    for step in stream(4, kind="ragged"):
        feed(learner, [step])
        assert nodes(learner) == 0


def test_nothing_that_a_step_gives_holds_a_graph(rule, network, stream):
    learner = rule(network())
    for step in stream(5):
        result = learner.step(step.u.requires_grad_(), step.y)
        assert result.output.grad_fn is None
        assert not result.output.requires_grad
        assert result.loss.grad_fn is None
        assert all(tensor.grad_fn is None and not tensor.requires_grad for state in learner.states for tensor in state)
        assert not any(tensor.requires_grad for tensor in learner.tensors().values())
        assert step.u.grad is None


def test_one_buffer_filled_anew_at_each_step_serves_as_input_and_target(rule, network, stream, feed, gradients):
    steps, fresh, reused = stream(6, kind="ragged"), network(), network()
    feed(one := rule(fresh), steps).flush()
    other = rule(reused)
    u, y, weight, mask = torch.empty(3, 3), torch.empty(3, 2), torch.empty(3), torch.empty(3, dtype=torch.bool)
    for step in steps:
        u.copy_(step.u)
        if step.reset is not None:
            other.reset(mask.copy_(step.reset))
        mask.copy_(torch.ones(3, dtype=torch.bool) if step.mask is None else step.mask)
        weight.copy_(torch.ones(3) if step.weight is None else torch.as_tensor(step.weight).expand(3))
        other.step(u, None if step.y is None else y.copy_(step.y), weight, mask)
    other.flush()
    assert one.steps == other.steps
    for name, gradient in gradients(fresh).items():
        torch.testing.assert_close(gradients(reused)[name], gradient, rtol=0, atol=1e-13)


def test_steps_inside_no_grad_and_inference_mode_learn_the_same(rule, network, stream, feed, gradients):
    steps, plain = stream(6, kind="ragged"), network()
    feed(rule(plain), steps).flush()
    for context in (torch.no_grad, torch.inference_mode):
        net = network()
        with context():
            feed(rule(net), steps).flush()
        for name, gradient in gradients(plain).items():
            assert torch.equal(net.get_parameter(name).grad, gradient)


def test_a_loss_that_is_not_finite_changes_nothing(rule, network, stream, feed, gradients):
    steps, clean, hit = stream(6), network(), network()
    feed(rule(clean), steps).flush()
    learner = feed(rule(hit), steps[:3])
    with pytest.raises(ArithmeticError, match="loss of step 3 is nan"):
        learner.step(steps[3].u, torch.full((3, 2), float("nan")))
    feed(learner, steps[3:]).flush()
    for name, gradient in gradients(clean).items():
        assert torch.equal(gradients(hit)[name], gradient)


@pytest.mark.parametrize("make", [BPTT, lambda network: TBPTT(network, 5, update="accumulate")], ids=["BPTT", "TBPTT"])
def test_weights_that_move_inside_an_open_window_are_noticed(make, network, stream, feed):
    net, steps = network(), stream(6)
    learner = feed(make(net), steps[:3])
    with torch.no_grad():
        net.layers[0].bias.add_(1.0)
    with pytest.raises(StreamError, match=r"last 3 steps waited.*call flush\(\) before"):
        learner.step(steps[3].u, steps[3].y)
    feed(learner, steps[3:]).flush()
    assert net.layers[0].weight_hh.grad.abs().sum() > 0


def test_an_optimizer_of_your_own_works_after_flush(network, stream, feed):
    net, twin, steps = network(), network(), stream(8)
    mine, other = BPTT(net, lr=1.0), BPTT(twin, lr=0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for part in (steps[:4], steps[4:]):
        feed(mine, part).flush()
        optimizer.step()
        optimizer.zero_grad()
        feed(other, part).apply()
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def as_it_is(learner, spare):
    return learner


def saved(learner, spare):
    other = spare
    other.load_state_dict(learner.state_dict())
    return other


@pytest.mark.parametrize("between", [as_it_is, saved])
@pytest.mark.parametrize("make", [BPTT, lambda network: TBPTT(network, 9), lambda network: TBPTT(network, 2, 9)], ids=["BPTT", "live", "rerun"])
@pytest.mark.parametrize("kind", ["at once", "after a reset of a row"])
def test_states_put_in_by_hand_begin_a_new_window(make, network, stream, feed, exact, agree, kind, between):
    net, steps = network(), stream(7)
    learner, spare = make(net), make(network(seed=9))
    learner.update = spare.update = "accumulate"
    feed(learner, steps[:3])
    put = torch.rand(3, 4)
    learner.states = ((put.clone(),),)
    learner = between(learner, spare)
    if kind != "at once":
        learner.reset(torch.tensor([True, False, False]))
        put[0] = 0
    feed(learner, steps[3:]).flush()
    first, second = exact(net, steps[:3]), exact(net, steps[3:], [put])
    agree(learner.network, {name: first[name] + second[name] for name in first})
