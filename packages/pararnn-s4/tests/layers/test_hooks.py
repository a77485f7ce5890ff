"""Hooks on the modules inside a model: they run, and what they set is what is computed with."""

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, apply_activation_checkpointing
from torch.nn.utils import prune

from pararnn import ParaRNN
from pararnn.errors import ConfigError
from pararnn_s4 import S4Model, param_groups
from pararnn_s4.layers.block import ResidualBlock


def build(**options):
    torch.manual_seed(0)
    return S4Model(3, 2, 8, 2, d_state=8, dt_min=0.02, dt_max=0.5, dtype=torch.float64, **options)


def halve_outputs(module):
    """Prune every second output weight of each feature."""
    mask = torch.ones_like(module.C)
    mask[:, :, ::2] = 0
    prune.custom_from_mask(module, "C", mask)
    return mask


@pytest.fixture(params=["convolution", "scan"])
def method(request):
    return request.param


@pytest.mark.parametrize("options", [{}, {"layer": "s4", "prenorm": True, "gate": 2, "bottleneck": 2, "dropout": 0.1}], ids=str)
def test_hooks_of_every_module_inside_a_model_run_once(options, sequences):
    model, calls = build(**options), []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    model(sequences(features=3), lengths=[4, 19, 11])
    owners = {name for name, module in model.named_modules() if list(module.parameters(recurse=False))}
    assert "blocks.1.layer.ssm" in owners
    assert {name: calls.count(name) for name in {*owners, "blocks.0", "blocks.1"}} == dict.fromkeys({*owners, "blocks.0", "blocks.1"}, 1)


def test_a_block_may_be_called_by_itself(sequences, close):
    block, x = build().blocks[0], sequences()
    y, state = block(x, lengths=[4, 19, 11], return_state=True)
    close(y, block.norm(x + block.layer(x, lengths=[4, 19, 11])))
    close(state, block.layer(x, lengths=[4, 19, 11], return_state=True)[1])
    close(block(x, lengths=[4, 19, 11]), y, atol=0)


def test_recomputed_blocks_give_the_same_gradients(sequences, close):
    model, wrapped, x = build(), build(), sequences(features=3)
    apply_activation_checkpointing(wrapped, check_fn=lambda module: isinstance(module, ResidualBlock))
    assert isinstance(wrapped.blocks[0], CheckpointWrapper)
    for each in (model, wrapped):
        each(x, lengths=[4, 19, 11]).square().sum().backward()
    for parameter, other in zip(model.parameters(), wrapped.parameters(), strict=True):
        close(other.grad, parameter.grad)
    close(wrapped.eval().step(x[:, 0])[0], model.eval().step(x[:, 0])[0])


def test_a_pruned_state_space_computes_with_what_is_left_of_it(make, kind, sequences, walk, close, method):
    layer, expected, x = make(kind, method=method), make(kind), sequences()
    mask = halve_outputs(layer.ssm)
    with torch.no_grad():
        # What a hook set earlier is stale now.
        layer.ssm.C_orig.mul_(3)
        expected.ssm.C.mul_(3 * mask)
    y, state = expected(x, return_state=True)
    found, after = layer(x, return_state=True)
    close(found, y)
    close(after, state)
    with torch.no_grad():
        for change in (layer.ssm.C_orig, expected.ssm.C):
            change.mul_(0.5)
    y = expected(x)
    close(walk(layer, x, layer.init_state(3))[0], y)
    close(walk(layer.decoder(), x, layer.init_state(3))[0], y)
    close(ParaRNN(layer.cell())(x), ParaRNN(expected.cell())(x))
    close(layer.ssm(19), expected.ssm(19))
    for one, other in zip(layer.ssm.discrete(), expected.ssm.discrete(), strict=True):
        close(one, other)


def test_a_pruned_state_space_learns(make, family, sequences, close, method):
    layer, expected, x = make(family, method=method), make(family), sequences()
    mask = halve_outputs(layer.ssm)
    with torch.no_grad():
        expected.ssm.C.mul_(mask)
    optimizers = [torch.optim.SGD(param_groups(each), lr=0.1) for each in (layer, expected)]
    for _ in range(3):
        for each, optimizer in zip((layer, expected), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            if each is expected:
                each.ssm.C.grad.mul_(mask)
            optimizer.step()
    close(layer(x), expected(x))
    close(layer.ssm.C, expected.ssm.C)


def test_a_pruned_skip_is_refused_where_it_would_be_stale(make, family, sequences, close):
    layer, x = make(family), sequences()
    cell = make(family).cell()
    for module in (layer, cell):
        prune.l1_unstructured(module, "D", amount=0.3)
    y = layer(x)
    for call in (lambda: layer.step(x[:, 0]), layer.decoder, layer.cell, lambda: ParaRNN(cell)(x)):
        with pytest.raises(ConfigError, match=r"would read a stale D: .*prune\.remove\(module, 'D'\)"):
            call()
    prune.remove(layer, "D")
    close(layer.step(x[:, 0])[0], y[:, 0])


def test_a_model_with_pruned_linears_can_be_decoded(sequences, close):
    model, x = build(pool=None).eval(), sequences(features=3)
    for module in (model.encoder, model.head, model.blocks[0].layer.output_linear[0]):
        prune.l1_unstructured(module, "weight", amount=0.3)
    y = model(x)
    close(model.step(x[:, 0])[0], y[:, 0])
    close(model.decoder().step(x[:, 0])[0], y[:, 0])
