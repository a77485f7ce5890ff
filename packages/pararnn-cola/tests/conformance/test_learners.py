"""The kit for rules: all rules of this package pass it, and each check finds its fault."""

import pytest
import torch

import pararnn.registry
from pararnn.conformance.report import seeded
from pararnn.errors import ConfigError, ConformanceError
from pararnn_cola import COLA, TBPTT, TBPTT1, UORO, CellLayer, LeakyLayer, Network, Readout, RNNLayer, StepResult, plugin
from pararnn_cola.conformance import Maker, check_learner, learner_checks
from pararnn_cola.learners.rows import Rows

CHECKS = learner_checks()


def short_windows(network, **options):
    return TBPTT(network, k1=3, k2=5, **options)


def stack():
    return Network([LeakyLayer(2, 4), RNNLayer(4, 5)], Readout(5, 2)).double()


def cell():
    return Network(CellLayer(RNNLayer(2, 5)), Readout(5, 2)).double()


@pytest.mark.parametrize("name", sorted(spec.name for spec in plugin.pararnn_register_learners()))
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_rules_of_this_package_pass(name, check):
    kind = pararnn.registry.installed().learners[name].spec.load()
    seeded(lambda: check(Maker(short_windows if name == "TBPTT" else kind)), 0)


@pytest.mark.parametrize("kind", [COLA, TBPTT1])
def test_rules_pass_on_stacks_of_other_layers(kind):
    assert check_learner(kind, stack).ok


def test_a_rule_that_uses_autograd_passes_on_a_cell_of_the_core():
    assert check_learner(short_windows, cell).ok


class Nameless(TBPTT1):
    def __repr__(self):
        return "a rule"


class Summed(TBPTT1):
    def _learn(self, *arguments):
        result = super()._learn(*arguments)
        return StepResult(result.output, None if result.loss is None else result.loss * self.batch[-1])


class Late(TBPTT1):
    def step(self, u, *arguments, **options):
        before = self.states or self.network.zero_state(len(u))
        result = super().step(u, *arguments, **options)
        with torch.no_grad():
            return StepResult(self.network.advance(u, before)[0], result.loss)


class Unweighted(TBPTT1):
    def _learn(self, u, target, rows, signals):
        return super()._learn(u, target, Rows(rows.present, rows.live if rows.live is False else True, 1.0), signals)


class Deaf(TBPTT1):
    def _contribute(self, *arguments):
        return None


class Thawing(TBPTT1):
    def __init__(self, network, **options):
        network.requires_grad_()
        super().__init__(network, **options)


class Overwriting(TBPTT1):
    def _learn(self, u, target, *rest):
        if target is not None:
            self.network.zero_grad()
        return super()._learn(u, target, *rest)


class Standing(TBPTT1):
    def _learn(self, u, target, *rest):
        before = self.states
        result = super()._learn(u, target, *rest)
        if target is None:
            self.states = before
        return result


class Decaying(TBPTT1):
    def _learn(self, u, target, *rest):
        result = super()._learn(u, target, *rest)
        if target is None:
            with torch.no_grad():
                self.network.readout.bias.mul_(0.9)
        return result


class Forgetful(COLA):
    def _recall(self, memory):
        super()._recall(memory)
        self.valid = [False for _ in self.valid]


class Secretive(TBPTT1):
    count = 0

    def _learn(self, *arguments):
        self.count = self.count + 1
        self.hidden_gain = 1.0 + 0.1 * (self.count % 3)
        return super()._learn(*arguments)


class Unpicklable(TBPTT1):
    def state_dict(self):
        return super().state_dict() | {"loss": self.loss}


class Shared(TBPTT1):
    counts = []  # noqa: RUF012

    def _learn(self, *arguments):
        self.counts.append(1)
        self.hidden_gain = 1.0 + len(self.counts)
        return super()._learn(*arguments)

    def state_dict(self):
        return super().state_dict() | {"counts": len(self.counts)}


class Sweeping(TBPTT1):
    def reset(self, rows=None, **options):
        super().reset(None, **options)


class Stubborn(TBPTT1):
    def reset(self, rows=None, **options):
        if rows is None:
            super().reset(rows, **options)


class Crossing(COLA):
    def _forget(self, rows):
        pass


class Remembering(COLA):
    def _forget_statistics(self):
        pass


class Unmasked(TBPTT1):
    def _learn(self, u, target, rows, signals):
        return super()._learn(u, target, Rows(None, rows.live, rows.weight), signals)


class Peeking(TBPTT1):
    def step(self, u, y=None, *arguments, **options):
        if y is not None:
            self.hidden_gain = 1.0 + float(y.nan_to_num(1.0).mean())
        return super().step(u, y, *arguments, **options)


class Attached(TBPTT1):
    def _learn(self, *arguments):
        result = super()._learn(*arguments)
        return StepResult(self.network.readout(self.states[-1][0]), result.loss)


class Hoarding(TBPTT1):
    def _learn(self, u, *rest):
        self.past = [*getattr(self, "past", []), u.clone()]
        return super()._learn(u, *rest)


class Scribbling(TBPTT1):
    def _learn(self, u, *rest):
        return super()._learn(u.mul_(1.0), *rest)


class Borrowing(TBPTT1):
    last = None

    def _learn(self, u, *rest):
        before, self.last = self.last, u
        return super()._learn(u if before is None else u + 0.1 * before, *rest)


class Echoing(TBPTT1):
    last = None

    def _learn(self, u, target, *rest):
        moved = target if target is None or self.last is None else target + 0.1 * self.last
        result = super()._learn(u, moved, *rest)
        self.last = result.output
        return result


class Hasty(TBPTT1):
    def _learn(self, u, *rest):
        self.states = self.network.advance(u, self.states)[1]
        return super()._learn(u, *rest)


class Careless(TBPTT1):
    def _finite(self, *arguments):
        pass


class Summing(TBPTT1):
    def _contribute(self, index, layer, moment, output_gradient, instantaneous, rows, buffers, scale):
        return super()._contribute(index, layer, moment, output_gradient, instantaneous, rows, buffers, 1.0)


class Lonely(TBPTT1):
    def _learn(self, u, *rest):
        return super()._learn(u * 0 if len(u) == 1 else u, *rest)


class Numberless(TBPTT1):
    def step(self, u, y=None, weight=None, mask=None, **options):
        return super().step(u, y, None if isinstance(weight, float) else weight, mask, **options)


class Shifted(TBPTT1):
    def _learn(self, u, target, *rest):
        return super()._learn(u, target if target is None or target.is_floating_point() else (target + 1) % 2, *rest)


class Boundless(TBPTT1):
    def apply(self):
        self.clip = None
        super().apply()


class Counting(TBPTT1):
    def _learn(self, *arguments):
        result = super()._learn(*arguments)
        self.losses = [*getattr(self, "losses", []), 0.5 if result.loss is None else result.loss.item()]
        return result


FAULTS = [
    ("batch_is_a_mean", Summing, "sum over the batch, and scale by 1/batch"),
    ("single_sample", Lonely, "keep the batch dimension"),
    ("number_as_weight", Numberless, "weight=2.5 and a tensor full of 2.5 differ"),
    ("cross_entropy", Shifted, "hand targets to self.loss as they are"),
    ("clip", Boundless, "with clip=0.001 an update was by a gradient of norm"),
    ("flat_memory", Counting, "bytes after 40 steps"),
    ("interface", Nameless, "without Nameless"),
    ("outputs_and_losses", Summed, "divide by the batch"),
    ("outputs_and_losses", Late, "answer before the weights move"),
    ("readout_gradient", Unweighted, "zero in rows with weight 0"),
    ("every_parameter_learns", Deaf, "layers.0.weight_hh has a gradient of zeros"),
    ("every_parameter_learns", Thawing, "layers.0.weight_hh is frozen, but has a gradient"),
    ("gradients_add_up", Overwriting, "the sum of both differ"),
    ("target_free_steps", Standing, "left the state where it was"),
    ("target_free_steps", Decaying, "changed the weights (readout.bias"),
    ("chunks", Forgetful, "take over in _recall"),
    ("resume", Secretive, "name in _memory"),
    ("resume", Unpicklable, "cannot read the state_dict"),
    ("copies", Shared, "changed the original"),
    ("row_reset", Sweeping, "another row answers differently"),
    ("row_reset", Stubborn, "answers differently from a new stream"),
    ("nothing_crosses_a_reset", Crossing, "previous signals in _forget"),
    ("nothing_crosses_a_reset", Remembering, "coefficients in _forget_statistics"),
    ("padding", Unmasked, "moved the state of rows that the mask leaves out"),
    ("padding", Peeking, "0 * NaN is NaN"),
    ("rows_without_weight", Peeking, "targets of rows with weight 0 matter"),
    ("no_graph", Attached, "result.output holds a graph"),
    ("flat_memory", Hoarding, "tensors were alive after 40 steps"),
    ("arguments_stay", Scribbling, "writes into a tensor that it was given"),
    ("arguments_stay", Borrowing, "keep a copy of what is needed later"),
    ("results_are_given_away", Echoing, "give copies of what is kept"),
    ("failed_steps_change_nothing", Hasty, "raised but changed"),
    ("failed_steps_change_nothing", Careless, "a target of NaN raised nothing"),
]


@pytest.mark.parametrize(("name", "kind", "message"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_each_check_finds_its_fault(name, kind, message):
    with pytest.raises(ConformanceError) as caught:
        seeded(lambda: CHECKS[name](Maker(kind)), 0)
    assert message in str(caught.value)


def test_every_check_has_a_fault_to_find():
    assert {name for name, _, _ in FAULTS} == set(CHECKS)


def test_the_whole_kit_names_every_fault_of_a_rule():
    with pytest.raises(ConformanceError, match="learner Deaf: 22 passed, 1 failed") as caught:
        check_learner(Deaf)
    assert list(caught.value.data["report"].failures) == ["every_parameter_learns"]


SMALL = {
    "arguments": (lambda batch: torch.randn(batch, 2), "make_input(4, 3) raised"),
    "shape": (lambda batch, seed: torch.randn(batch, 2, dtype=torch.float64), "make_input(4, 3) gave (4, 2) in torch.float64"),
    "dtype": (lambda time, batch: torch.randn(time, batch, 2), "make_input(4, 3) gave (4, 3, 2) in torch.float32"),
    "kind": (lambda time, batch: [0] * time, "make_input(4, 3) gave a list"),
    "features": (lambda time, batch: torch.randn(time, batch, 7, dtype=torch.float64), "the network cannot take a step of what it gave, (3, 7)"),
}


@pytest.mark.parametrize("case", SMALL)
def test_wrong_inputs_are_told_once_and_not_by_every_check(case):
    make_input, message = SMALL[case]
    with pytest.raises(ConfigError) as refusal:
        check_learner(TBPTT1, make_input=make_input)
    assert message in str(refusal.value)
    assert str(refusal.value).count("make_input(time, batch) gives random inputs (time, batch, *input) in float64") == 1


def test_a_network_in_single_precision_is_told_once():
    with pytest.raises(ConfigError, match=r"make_network\(\) gives torch.float32; .* float64"):
        check_learner(TBPTT1, lambda: Network.rnn(2, 5, 2))


def test_the_public_names_of_signals_are_those_of_the_rules():
    import pararnn_cola

    assert issubclass(COLA, pararnn_cola.SignalLearner)
    signals = COLA(Network.rnn(2, 5, 2)).step(torch.randn(3, 2), torch.randn(3, 2), signals=True).signals
    assert isinstance(signals[0], pararnn_cola.Signals)
    layer = RNNLayer(2, 5)
    assert isinstance(layer.observe(torch.randn(3, 2), layer.zero_state(3))[1], pararnn_cola.Moment)


def plain(network, *, update, lr):
    return TBPTT1(network, update=update, lr=lr)


def test_a_maker_that_passes_no_options_on_leaves_out_what_needs_them():
    report = check_learner(plain)
    left = {result.check for result in report.results if result.verdict == "not applicable"}
    assert report.ok
    assert left == {"cross_entropy", "clip"}


def test_a_rule_with_random_numbers_for_each_row_has_no_batch_to_double():
    report = check_learner(UORO)
    assert report.ok
    assert {result.check for result in report.results if result.verdict == "not applicable"} == {"batch_is_a_mean"}


def test_what_makes_no_learner_is_told_once():
    with pytest.raises(ConfigError, match=r"make_learner\(network, update=..., lr=...\) gives a learner of that network; it raised"):
        check_learner(3)
