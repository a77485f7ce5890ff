"""What these rules cannot do, and say so; and what they say that they are."""

import pytest
import torch
from torch import nn

import pararnn_cola
from pararnn.errors import ConfigError
from pararnn_cola import BPTT, RTRL, TBPTT, UORO, CellLayer, CoverageError, Network, Readout, StreamError

RULES = {"BPTT": BPTT, "TBPTT-live": lambda net: TBPTT(net, 2), "TBPTT-rerun": lambda net: TBPTT(net, 2, 3), "RTRL": RTRL, "UORO": UORO}


def test_bptt_does_not_move_weights_at_each_step(network):
    with pytest.raises(ConfigError, match=r"cut BPTT down to one step.*TBPTT\(network, k1="):
        BPTT(network(), update="step")


@pytest.mark.parametrize(
    ("k1", "k2", "says"), [(0, None, "k1=0"), (2, 1, "first 1 losses"), (2.5, None, "k1=2.5"), (True, None, "k1=True"), (1, -1, "k2")]
)
def test_a_window_that_would_lose_losses_is_refused(network, k1, k2, says):
    with pytest.raises(ConfigError, match=says):
        TBPTT(network(), k1, k2)


def test_rtrl_tells_the_bytes_that_it_would_need(network, stream):
    net = network()
    learner = RTRL(net, memory_limit=2**10)
    step = stream(1, batch=5)[0]
    # 2 copies of 5 samples, 4 states and 16 + 12 + 4 parameters, of 8 bytes.
    needed = 2 * 5 * 4 * 32 * 8
    with pytest.raises(ConfigError, match=rf"32 parameters.*5 samples takes {needed} bytes, above memory_limit=1024; take UORO"):
        learner.step(step.u, step.y)
    assert learner.memory(5) == needed
    assert learner.states is None
    RTRL(net, memory_limit=needed).step(step.u, step.y)


class Unused(nn.Module):
    """A cell with a parameter that nothing depends on."""

    state_size = 2

    def __init__(self):
        super().__init__()
        from pararnn.structures import Diagonal

        self.structure = Diagonal
        self.used, self.idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def initial_state(self, batch):
        return self.used.new_zeros(batch, 2)

    def drive(self, x):
        return self.used * x

    def step(self, state, drive):
        return torch.tanh(state + drive)

    def readout(self, states):
        return states


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_parameter_without_influence_is_an_error_until_it_is_frozen(rule):
    net = Network(CellLayer(Unused()), Readout(2, 1))
    u, y = torch.ones(3, 2), torch.ones(3, 1)

    def learn():
        learner = rule(net)
        for _ in range(2):
            learner.step(u, y)
        learner.flush()

    with pytest.raises(CoverageError, match=r"no path from layers\.0\.cell\.idle.*requires_grad_\(False\)"):
        learn()
    net.layers[0].cell.idle.requires_grad_(False)
    learn()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_parameter_outside_of_layers_and_readout_is_refused(rule, network):
    net = network()
    net.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(CoverageError, match="scale belong neither"):
        rule(net)


@pytest.mark.parametrize("cls", [RTRL, UORO])
def test_rules_that_go_forward_take_no_ensemble(cls, network):
    ensemble = pytest.importorskip("pararnn_cola.ensemble").stack_networks([network(seed=0), network(seed=1)])
    with pytest.raises(CoverageError, match=r"ensemble of 2.*BPTT or TBPTT"):
        cls(ensemble)


@pytest.mark.parametrize("make", [BPTT, lambda net: TBPTT(net, 2, update="accumulate"), lambda net: TBPTT(net, 2, 3, update="accumulate")])
def test_windows_of_an_ensemble_are_those_of_its_networks(make, network, stream):
    stack = pytest.importorskip("pararnn_cola.ensemble").stack_networks
    steps, singles = stream(5), [network(seed=0), network(seed=1)]
    both = stack(singles)
    learners = [make(net) for net in (both, *singles)]
    for t, step in enumerate(steps):
        if t == 3:
            learners[0].reset(torch.tensor([True, False, False]))
            learners[1].reset(torch.tensor([True, False, False]))
            learners[2].reset(torch.tensor([True, False, False]))
        learners[0].step(step.u.expand(2, 3, 3), step.y.expand(2, 3, 2))
        for learner in learners[1:]:
            learner.step(step.u, step.y)
    for learner in learners:
        learner.flush()
    for name, parameter in both.named_parameters():
        for run, single in enumerate(singles):
            torch.testing.assert_close(parameter.grad[run], single.get_parameter(name).grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (BPTT, "BPTT(RNNLayer, loss=mse, update='accumulate', optimizer=SGD)"),
        (lambda net: TBPTT(net, 2, 5), "TBPTT(RNNLayer, k1=2, k2=5, loss=mse, update='step', optimizer=SGD)"),
        (RTRL, "RTRL(RNNLayer, memory_limit=4294967296, loss=mse, update='step', optimizer=SGD)"),
        (UORO, "UORO(RNNLayer, seed=0, loss=mse, update='step', optimizer=SGD)"),
    ],
)
def test_the_rule_says_what_it_is(network, make, says):
    assert repr(make(network())) == says


def test_a_checkpoint_of_one_rule_is_no_checkpoint_of_another(network):
    with pytest.raises(StreamError, match="BPTT"):
        RTRL(network()).load_state_dict(BPTT(network()).state_dict())


def test_the_rules_stand_in_the_package_and_in_its_plugin():
    from pararnn_cola.plugin import pararnn_register_learners

    found = {spec.name: spec.load() for spec in pararnn_register_learners()}
    for cls in (BPTT, RTRL, TBPTT, UORO):
        assert found[cls.__name__] is cls is getattr(pararnn_cola, cls.__name__)
