"""Layers on a GPU learn what they learn on the CPU."""

from __future__ import annotations

import copy

import pytest
from torch.testing import assert_close

from pararnn_cola import COLA, TBPTT1, EProp, SnAp1

pytestmark = pytest.mark.gpu

DENSE = [("rnn",), ("leaky",), ("leaks",), ("fast_sigmoid",), ("arctan", "leaks")]
PAIRS = [(rule, kinds) for rule in (COLA, TBPTT1) for kinds in [*DENSE, ("lstm",), ("maps", "maps"), ("rows",)]]
PAIRS += [(rule, kinds) for rule in (SnAp1, EProp) for kinds in DENSE]


@pytest.mark.parametrize(("rule", "kinds"), PAIRS, ids=lambda part: part.__name__ if isinstance(part, type) else "-".join(part))
def test_gradients_are_those_of_the_cpu(rule, kinds, network, stream, streamed):
    net = network(*kinds)
    inputs, targets = stream(net)
    other = copy.deepcopy(net).cuda()
    found = streamed(rule, other, inputs.cuda(), targets.cuda())
    expected = streamed(rule, net, inputs, targets)
    assert_close({name: gradient.cpu() for name, gradient in found.items()}, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["maps", "rows", "rnn"])
def test_operator_norms_are_those_of_the_cpu(kind, network):
    (layer,) = network(kind).recurrent
    expected = layer.operator_norm()
    assert_close(layer.cuda().operator_norm().cpu(), expected, rtol=1e-11, atol=0)
