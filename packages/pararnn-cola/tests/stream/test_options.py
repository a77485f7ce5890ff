"""Options that a rule does not have, or that are no numbers."""

import re

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola import BPTT, COLA, TBPTT1, EProp, SignalLearner


def test_an_unknown_option_is_refused_with_those_that_there_are(rule, network):
    with pytest.raises(ConfigError) as refusal:
        rule(network(), momentum=0.9)
    message = str(refusal.value)
    assert f"{rule.kind.__name__} has no option momentum" in message
    assert "loss, optimizer, lr, update, clip" in message.replace("update, loss, optimizer, lr, clip", "loss, optimizer, lr, update, clip")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: COLA(n, rho=0.99), "COLA has no option rho (did you mean rho_mu or rho_alpha?); its options are rho_alpha, rho_mu, margin"),
        (lambda n: TBPTT1(n, gain=10), "TBPTT1 has no option gain (did you mean hidden_gain?); its options are hidden_gain, loss"),
        (lambda n: EProp(n, learning_rate=1), "its options are feedback, seed, loss, optimizer, lr, update, clip"),
        (lambda n: BPTT(n, optimiser=None), "(did you mean optimizer?); its options are update, loss, optimizer, lr, clip"),
    ],
    ids=["rho", "gain", "learning_rate", "optimiser"],
)
def test_an_option_that_is_nearly_one_is_answered_with_it(make, message, network):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(network())


class Tripled(SignalLearner):
    def __init__(self, network, *, factor=3.0, **options):
        super().__init__(network, **options)
        self.factor = factor

    def _signal(self, index, layer, moment, instantaneous, rows):
        return self.factor * instantaneous


def test_options_of_a_rule_of_ones_own_are_told_too(network):
    assert Tripled(network(), factor=2.0).factor == 2.0
    with pytest.raises(ConfigError, match=re.escape("Tripled has no option facto (did you mean factor?); its options are factor, loss")):
        Tripled(network(), facto=2.0)


@pytest.mark.parametrize("rate", [-1, -1e-9, float("nan"), float("inf"), "a", None, True, 1j, torch.tensor([])], ids=repr)
def test_a_rate_that_is_none_is_refused(rate, rule, network):
    with pytest.raises(ConfigError, match="a rate is a finite number, not negative"):
        rule(network(), lr=rate)


@pytest.mark.parametrize("rate", [0, 0.0, 1, torch.tensor(0.5)], ids=repr)
def test_a_rate_may_be_zero_or_a_tensor(rate, rule, network):
    assert rule(network(), lr=rate).optimizer.param_groups[0]["lr"] == rate


@pytest.mark.parametrize("clip", [0, -1.0, "a", float("nan"), True], ids=repr)
def test_a_bound_that_is_none_is_refused(clip, network):
    with pytest.raises(ConfigError, match="the bound of a gradient's norm is above zero"):
        COLA(network(), clip=clip)


def test_each_rule_tells_its_options_in_its_documentation(rule):
    from pararnn_cola.learners.options import options_of

    assert all(f"`{name}`" in rule.kind.__doc__ for name in options_of(rule.kind))
