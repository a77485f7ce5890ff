"""What does not fit is refused with what to do about it, and nothing has changed then."""

import re

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola import COLA, TBPTT1, CoverageError, Network, NonFiniteLossError, Readout, RNNLayer, StreamError

NAN = float("nan")
FAULTS = {
    "u-dtype": ({"u": lambda u: u.float()}, DTypeError, "inputs are torch.float32 on cpu, the network is torch.float64 on cpu"),
    "u-device": ({"u": lambda u: u.to("meta")}, DTypeError, "inputs are torch.float64 on meta"),
    "u-list": ({"u": lambda u: u.tolist()}, DTypeError, "inputs are a tensor (batch, *input), got list"),
    "u-features": ({"u": lambda u: u[:, :1]}, ShapeError, "an input of 2 features was expected"),
    "u-single": ({"u": lambda u: u[0]}, ShapeError, "one step of at least one sample, (batch, *input), was expected"),
    "u-sequence": ({"u": lambda u: u.unsqueeze(0)}, ShapeError, "one step of at least one sample"),
    "u-empty": ({"u": lambda u: u[:0]}, ShapeError, "one step of at least one sample"),
    "y-shape": ({"y": lambda y: y[:, :1]}, ShapeError, "the target has shape (3, 1), the output (3, 2)"),
    "y-dtype": ({"y": lambda y: y.long()}, DTypeError, "the target is torch.int64, the output torch.float64"),
    "y-device": ({"y": lambda y: y.to("meta")}, DTypeError, "the target is on meta"),
    "y-list": ({"y": lambda y: y.tolist()}, DTypeError, "targets are a tensor"),
    "y-nan": ({"y": lambda y: y * NAN}, NonFiniteLossError, "is nan; the rate is probably too high"),
    "y-inf": ({"y": lambda y: y + float("inf")}, NonFiniteLossError, "is inf"),
    "weight-negative": ({"weight": lambda _: -1.0}, InputError, "weight=-1.0; the weight of a loss is finite and not negative"),
    "weight-nan": ({"weight": lambda _: torch.tensor([1.0, NAN, 1.0])}, InputError, "the weight of a loss is finite"),
    "weights-negative": ({"weight": lambda _: torch.tensor([1.0, -0.5, 1.0])}, InputError, "weights run from -0.5 to 1.0"),
    "weight-shape": ({"weight": lambda _: torch.ones(2)}, ShapeError, "weight has shape (2,); one entry a sample is (3,)"),
    "weight-scalar": ({"weight": lambda _: torch.tensor(1.0)}, ShapeError, "weight has shape ()"),
    "mask-shape": ({"mask": lambda _: torch.ones(3, 1, dtype=torch.bool)}, ShapeError, "mask has shape (3, 1)"),
    "mask-dtype": ({"mask": lambda _: torch.ones(3)}, DTypeError, "mask is boolean, true where a row has a step, got torch.float32"),
    "mask-list": ({"mask": lambda _: [True, False, True]}, DTypeError, "mask is a tensor with one entry a sample, got list"),
}


def attempt(learner, data, time, change):
    given = {"u": data[0][time], "y": data[1][time]}
    return learner.step(**given | {name: make(given.get(name)) for name, make in change.items()})


@pytest.mark.parametrize("started", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_does_not_fit_changes_nothing(rule, fault, started, network, stream, feed, snapshot, equal):
    change, error, message = FAULTS[fault]
    learner, data = rule(network(), lr=0.05), stream(9)
    if started:
        feed(learner, data, 0, 7)
    before = snapshot(learner)
    with pytest.raises(error, match=re.escape(message)):
        attempt(learner, data, 7, change)
    assert equal(snapshot(learner), before)
    twin = rule(network(), lr=0.05)
    if started:
        feed(twin, data, 0, 7)
    feed(learner, data, 7)
    feed(twin, data, 7)
    assert equal(learner.state_dict(), twin.state_dict())


def test_another_batch_size_is_refused_until_init_says_so(rule, network, stream, feed, snapshot, equal):
    learner, data, larger = rule(network(), lr=0.05), stream(6), stream(6, batch=5)
    feed(learner, data, 0, 4)
    before = snapshot(learner)
    with pytest.raises(ShapeError, match=re.escape("(5,) samples came after (3,); call init(5) to start anew")):
        learner.step(larger[0][0], larger[1][0])
    assert equal(snapshot(learner), before)
    learner.init(5)
    assert learner.states[0][0].shape == (5, 5)
    assert not learner.states[0][0].any()
    feed(learner, larger)
    assert all(p.isfinite().all() for p in learner.network.parameters())


@pytest.mark.parametrize("target", [-1, 2, 100])
def test_a_class_that_does_not_exist_is_refused_and_changes_nothing(rule, target, network, stream, snapshot, equal):
    learner, (inputs, targets) = rule(network(), loss="cross_entropy"), stream(4)
    classes = targets.argmax(-1)
    for u, y in zip(inputs[:3], classes[:3], strict=True):
        learner.step(u, y)
    before = snapshot(learner)
    with pytest.raises(InputError, match="the network has 2 outputs, so 0 to 1 are classes"):
        learner.step(inputs[3], torch.tensor([0, target, 1]))
    assert equal(snapshot(learner), before)


def test_classes_may_be_integers_of_any_width_and_nothing_else(rule, network, stream, equal):
    inputs, targets = stream(6)
    classes, learners = targets.argmax(-1), []
    for dtype in (torch.int64, torch.int32, torch.uint8):
        learners.append(rule(network(), loss="cross_entropy"))
        for u, y in zip(inputs, classes, strict=True):
            learners[-1].step(u, y.to(dtype))
    assert equal([learner.network.state_dict() for learner in learners[1:]], [learners[0].network.state_dict()] * 2)
    with pytest.raises(DTypeError, match=r"class indices are integers, got torch\.float64"):
        learners[0].step(inputs[0], classes[0].double())
    with pytest.raises(ShapeError, match="class indices of shape"):
        learners[0].step(inputs[0], nn.functional.one_hot(classes[0], 2))


def test_a_state_that_a_bad_input_left_is_noticed_in_rows_without_weight_too(network, stream, snapshot, equal):
    inputs, targets = stream(4)
    learner = COLA(network())
    learner.step(inputs[0].index_fill(0, torch.tensor([1]), NAN))
    before = snapshot(learner)
    with pytest.raises(NonFiniteLossError, match="an output of step 1 is not finite"):
        learner.step(inputs[1], targets[1], torch.tensor([1.0, 0.0, 1.0]))
    assert str(snapshot(learner)) == str(before)
    learner.reset(rows=torch.tensor([False, True, False]))
    assert learner.step(inputs[1], targets[1], torch.tensor([1.0, 0.0, 1.0])).loss.isfinite()


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (torch.ones(3), DTypeError, "rows is boolean"),
        (torch.ones(2, dtype=torch.bool), ShapeError, "rows has shape (2,)"),
        ([True, False, False], DTypeError, "rows is a tensor"),
    ],
    ids=["dtype", "shape", "list"],
)
def test_a_reset_that_does_not_fit_changes_nothing(rule, rows, error, message, network, stream, feed, snapshot, equal):
    learner = rule(network())
    feed(learner, stream(5))
    before = snapshot(learner)
    with pytest.raises(error, match=re.escape(message)):
        learner.reset(rows)
    assert equal(snapshot(learner), before)


def test_rows_cannot_be_reset_before_there_are_any(rule, network):
    with pytest.raises(StreamError, match="there are no rows yet"):
        rule(network()).reset(torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("batch", [(), (0,), (-1,), (2.0,), (2, 3)], ids=str)
def test_init_takes_one_size_of_at_least_one(rule, batch, network):
    learner = rule(network())
    with pytest.raises(ConfigError, match="init"):
        learner.init(*batch)
    assert learner.states is None


@pytest.mark.parametrize(
    "options",
    [{"update": "often"}, {"clip": 0.0}, {"clip": -1.0}, {"clip": NAN}, {"loss": "hinge"}],
    ids=str,
)
def test_an_option_that_cannot_work_is_refused(options, network):
    with pytest.raises(ConfigError, match=re.escape(f"{next(iter(options))}=")):
        COLA(network(), **options)


@pytest.mark.parametrize(
    "options",
    [{"rho_alpha": 1.0}, {"rho_mu": -0.1}, {"margin": 0.0}, {"margin": 1.5}, {"alpha_bound": 1.0}, {"eps": -1.0}, {"eps": NAN}, {"project": "never"}],
    ids=str,
)
def test_a_coefficient_of_cola_out_of_its_range_is_refused(options, network):
    with pytest.raises(ConfigError, match=re.escape(f"{next(iter(options))}=")):
        COLA(network(), **options)


@pytest.mark.parametrize("gain", [-1.0, NAN, torch.tensor([1.0, -2.0])], ids=str)
def test_a_gain_that_is_no_gain_is_refused(gain, network):
    with pytest.raises(ConfigError, match="a gain is finite and not negative"):
        TBPTT1(network(), hidden_gain=gain)


def test_a_network_inside_a_wrapper_is_refused_with_what_to_pass(rule, network):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    with pytest.raises(CoverageError, match="got Wrapper; pass the network inside it"):
        rule(Wrapper(network()))
    with pytest.raises(CoverageError, match="got RNN; build one from layers and a Readout"):
        rule(nn.RNN(2, 3))


def test_a_network_in_two_precisions_is_refused(rule, network):
    net = network()
    net.readout.float()
    with pytest.raises(DTypeError, match=re.escape("parameters in torch.float32 on cpu and torch.float64 on cpu; bring all into one")):
        rule(net)


def test_a_network_takes_layers_and_a_readout_only():
    with pytest.raises(ConfigError, match="layers of type Linear"):
        Network([RNNLayer(2, 3), nn.Linear(3, 3)], Readout(3, 1))
    with pytest.raises(ConfigError, match="a readout of type Linear"):
        Network(RNNLayer(2, 3), nn.Linear(3, 1))


def test_a_loss_that_gives_one_number_for_all_is_refused_and_changes_nothing(rule, network, stream, snapshot, equal):
    learner, data = rule(network(), loss=nn.functional.mse_loss), stream(1)
    before = snapshot(learner)
    with pytest.raises(ShapeError, match=re.escape('(reduction="none", then a mean over features)')):
        learner.step(data[0][0], data[1][0])
    assert equal(snapshot(learner), before)


def test_a_loss_that_raises_changes_nothing(rule, network, stream, feed, snapshot, equal):
    failing = []

    def loss(output, target):
        if failing:
            raise RuntimeError("no loss today")
        return (output - target).square().sum(-1)

    learner, data = rule(network(), loss=loss), stream(8)
    feed(learner, data, 0, 7)
    before = snapshot(learner)
    failing.append(True)
    with pytest.raises(RuntimeError, match="no loss today"):
        feed(learner, data, 7)
    assert equal(snapshot(learner), before)


def test_a_parameter_that_cola_has_no_formula_for_is_refused_unless_frozen(network):
    net = network()
    net.register_parameter("temperature", nn.Parameter(torch.ones(1, dtype=torch.float64)))
    for kind in (COLA, TBPTT1):
        with pytest.raises(CoverageError, match="none for temperature"):
            kind(net)
    net.temperature.requires_grad_(False)
    assert COLA(net)
