"""Residual networks are Euler's method with weights in pieces, bit for bit."""

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_nanode import NANODE, BucketPath, CallableField, ConstantPath, ConvField, DenseField, ResidualStack, TrigPath

STEPS = 7


def convolution():
    return ConvField(3, 3, ConstantPath((3, 3, 3, 3)), bias=ConstantPath(3), activation="relu")


LAYERS = pytest.mark.parametrize(("layer", "shape"), [(4, (5, 4)), (convolution, (2, 3, 6, 6))], ids=["dense", "convolutional"])
TIED = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def filled(stack):
    """`stack` with all parameters drawn anew, biases too."""
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.normal_(std=0.5)
    return stack


def written_out(stack, x):
    """The stack as a residual network is usually written."""
    for k in range(stack.steps):
        layer = stack.layers[0 if stack.tied else k]
        x = x + layer(0.0, x) / stack.steps
    return x


@LAYERS
@TIED
def test_a_stack_is_the_residual_network_written_out(layer, shape, tied):
    stack = filled(ResidualStack(layer, STEPS, tied=tied))
    x = torch.randn(shape)
    torch.testing.assert_close(stack(x), written_out(stack, x))
    ours, theirs = (torch.autograd.grad(ends.sum(), [*stack.parameters()]) for ends in (stack(x), written_out(stack, x)))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@LAYERS
@TIED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_stack_equals_its_block_bit_for_bit(layer, shape, tied, dtype):
    stack = filled(ResidualStack(layer, STEPS, tied=tied)).to(dtype)
    block = stack.to_nanode()
    assert all(isinstance(path, BucketPath) and path.n_matrices == (1 if tied else STEPS) for path in (block.field.path, block.field.bias))
    x = torch.randn(shape, dtype=dtype)
    results = []
    for model in (stack, block):
        start = x.clone().requires_grad_()
        end = model(start)
        end.square().sum().backward()
        results.append((end, start.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    for name in ("path", "bias"):
        ours = torch.cat([getattr(layer, name).coefficients.grad for layer in stack.layers])
        theirs = getattr(block.field, name).coefficients.grad
        assert torch.equal(ours, theirs)


@TIED
def test_a_stack_comes_back_from_its_block(tied):
    stack = filled(ResidualStack(4, STEPS, tied=tied, span=(0.0, 2.0)))
    back = ResidualStack.from_nanode(stack.to_nanode())
    assert back.tied == tied
    assert back.span == stack.span
    for (name, ours), theirs in zip(stack.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forth", "back"])
@pytest.mark.parametrize("path", [TrigPath((4, 4), 2), BucketPath((4, 4), 3)], ids=["smooth", "pieces"])
def test_a_block_of_any_path_becomes_an_untied_stack(path, span):
    block = NANODE(DenseField(4, path.double()), STEPS, span)
    stack = ResidualStack.from_nanode(block)
    assert not stack.tied
    x = torch.randn(5, 4)
    torch.testing.assert_close(stack(x), block(x), rtol=0, atol=1e-14)


def test_conversions_copy_parameters():
    stack = ResidualStack(4, STEPS)
    block = stack.to_nanode()
    before = block(torch.ones(4))
    filled(stack)
    assert torch.equal(block(torch.ones(4)), before)


def test_a_block_of_another_method_is_no_stack():
    with pytest.raises(ConfigError, match="method='heun'"):
        ResidualStack.from_nanode(NANODE(DenseField(4, ConstantPath((4, 4))), method="heun"))


def test_layers_with_moving_weights_are_refused():
    with pytest.raises(ConfigError, match="path is a TrigPath"):
        ResidualStack(lambda: DenseField(4, TrigPath((4, 4), 1)), STEPS)


def test_untied_layers_of_any_module_stay_a_stack():
    stack = ResidualStack(lambda: CallableField(Layer()), STEPS)
    x = torch.randn(5, 4)
    torch.testing.assert_close(stack(x), written_out(stack, x))
    with pytest.raises(ConfigError, match=r"fn.linear.weight.*belong to no weight path"):
        stack.to_nanode()


def test_a_tied_layer_of_any_module_becomes_a_block():
    stack = ResidualStack(lambda: CallableField(Layer()), STEPS, tied=True)
    x = torch.randn(5, 4)
    assert torch.equal(stack.to_nanode()(x), stack(x))


class Layer(torch.nn.Module):
    """A layer of two matrices."""

    def __init__(self):
        super().__init__()
        self.linear, self.out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, t, x):
        return self.out(torch.relu(self.linear(x)))
