"""Layers on batches without rows and sequences without samples: shapes, and gradients of every parameter."""

import pytest
import torch

SHAPES = [(0, 16, 8), (0, 1, 8), (2, 0, 8), (0, 0, 8)]


@pytest.mark.parametrize("method", ["convolution", "scan", "auto"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_parameter_has_a_gradient_of_zero_where_there_is_nothing_to_compute(make, kind, method, shape):
    layer = make(kind, method=method, channels=2)
    for state in (None, layer.init_state(shape[0])):
        for lengths in (None, torch.zeros(shape[0], dtype=torch.long)):
            layer.zero_grad()
            y, after = layer(torch.zeros(shape, dtype=torch.float64), state, lengths=lengths, return_state=True)
            assert y.shape == shape
            assert after.shape == layer.init_state(shape[0]).shape
            y.sum().backward()
            for name, parameter in layer.named_parameters():
                assert parameter.grad is not None, name
                assert not parameter.grad.any(), name


@pytest.mark.parametrize("direction", [True, "exclusive"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_directions_have_gradients_too(make, family, shape, direction):
    layer = make(family, bidirectional=direction)
    layer(torch.zeros(shape, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
