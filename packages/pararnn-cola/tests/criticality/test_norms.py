"""Norms of recurrent maps, against the singular values of the whole map."""

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError
from pararnn_cola import CellLayer, ConvLayer, Network, RNNLayer, operator_norm

WIDE = torch.float64


@pytest.mark.parametrize("size", [(7,), (5, 4)], ids=str)
@pytest.mark.parametrize("kernel", [1, 3, 5], ids="kernel{}".format)
def test_the_norm_of_a_convolution_is_that_of_the_whole_map(size, kernel):
    layer = ConvLayer(1, 3, kernel, size=size, generator=torch.Generator().manual_seed(0), dtype=WIDE)
    convolve = nn.functional.conv1d if len(size) == 1 else nn.functional.conv2d
    units = 3 * torch.Size(size).numel()
    basis = torch.eye(units, dtype=WIDE).view(units, 3, *size)
    dense = convolve(basis, layer.weight_hh, padding=kernel // 2).detach().flatten(1).mT
    assert operator_norm(layer) == pytest.approx(float(torch.linalg.svdvals(dense)[0]), rel=1e-6)
    assert float(torch.linalg.svdvals(layer.weight_hh.detach().flatten(1))[0]) != pytest.approx(operator_norm(layer), rel=1e-2) or kernel == 1


def test_the_norm_of_a_layer_is_its_largest_singular_value(network):
    made = network(state_size=9)
    expected = float(torch.linalg.svdvals(made.recurrent[0].weight_hh.detach())[0])
    assert operator_norm(made) == pytest.approx(expected, rel=1e-14)
    assert operator_norm(made.recurrent[0].weight_hh) == pytest.approx(expected, rel=1e-14)
    assert operator_norm(RNNLayer(1, 2)) > 0


def test_a_vector_is_the_diagonal_of_its_map():
    assert operator_norm(torch.tensor([0.5, -3.0, 1.0])) == 3.0


def test_gates_count_as_one_tall_matrix():
    cell = nn.GRUCell(2, 5)
    assert operator_norm(cell) == pytest.approx(float(torch.linalg.svdvals(cell.weight_hh.detach())[0]), rel=1e-6)


def test_what_has_no_single_recurrent_map_is_refused(network):
    with pytest.raises(ConfigError, match="2 recurrent maps"):
        operator_norm(network(state_size=4, num_layers=2))
    for module in (nn.Linear(2, 2), nn.RNN(2, 3, num_layers=2), CellLayer(RNNLayer(2, 3))):
        with pytest.raises(ConfigError, match="weight="):
            operator_norm(module)
    with pytest.raises(ConfigError, match="no matrix"):
        operator_norm(torch.zeros(2, 2, 3, 3))


def test_weights_that_are_not_finite_have_no_norm():
    made = Network.rnn(2, 3, 1)
    with torch.no_grad():
        made.recurrent[0].weight_hh[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="not all finite"):
        operator_norm(made)
