"""Layers and readouts that do not fit each other are found when the network is made, and what fits tells its sizes."""

import re

import pytest
import torch
from torch.nn import functional as F

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import BPTT, COLA, CellLayer, ConvLayer, LeakyLayer, Network, Readout, RNNLayer, SpikingLayer
from pararnn_cola.experimental.lstm import LSTMLayer


def conv(channels_in=1, channels=2):
    return ConvLayer(channels_in, channels, 3, size=(4, 4))


MISFITS = {
    "readout": ([RNNLayer(3, 8)], Readout(9, 2), ShapeError, "the readout takes 9 features, the top layer gives 8; make it Readout(8, ...)"),
    "flat": (
        [conv()],
        Readout(32, 2),
        ConfigError,
        "unit_dims=1, the top layer gives 3 dimensions a sample, (2, 4, 4); pass Readout(32, ..., unit_dims=3)",
    ),
    "maps": ([conv()], Readout(16, 2, unit_dims=3), ShapeError, "the readout takes 16 features, the top layer gives 32"),
    "maps-for-vectors": ([RNNLayer(3, 8)], Readout(8, 2, unit_dims=3), ConfigError, "unit_dims=3, the top layer gives 1 dimensions"),
    "stack": ([RNNLayer(3, 8), LeakyLayer(7, 5)], Readout(5, 2), ShapeError, "layer 1 (LeakyLayer) takes inputs of shape (7,), layer 0 gives (8,)"),
    "channels": ([conv(), conv(3)], Readout(32, 2, unit_dims=3), ShapeError, "takes inputs of shape (3, 4, 4), layer 0 gives (2, 4, 4)"),
    "cell": ([CellLayer(RNNLayer(3, 8))], Readout(9, 2), ShapeError, "the readout takes 9 features, the top layer gives 8"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_with_the_numbers(case):
    layers, readout, error, message = MISFITS[case]
    with pytest.raises(error, match=re.escape(message)):
        Network(layers, readout)


FITS = {
    "stack": ([RNNLayer(3, 8), LeakyLayer(8, 5), LSTMLayer(5, 4)], Readout(4, 2)),
    "maps": ([conv(), conv(2, 3)], Readout(48, 2, unit_dims=3)),
    "cell": ([CellLayer(RNNLayer(3, 8)), RNNLayer(8, 4)], Readout(4, 2)),
}


@pytest.mark.parametrize("case", FITS)
def test_what_fits_takes_a_step(case):
    network = Network(*FITS[case])
    u = torch.randn(2, *(network.recurrent[0].input_shape or (3,)))
    assert network.advance(u, network.zero_state(2))[0].shape == (2, 2)


SHOWN = {
    "RNNLayer(3, 8, activation=relu)": RNNLayer(3, 8, activation="relu"),
    "LeakyLayer(3, 8, leak=0.5, activation=tanh)": LeakyLayer(3, 8, leak=0.5),
    "SpikingLayer(3, 8, leak=0.9, activation=arctan, threshold=0.5)": SpikingLayer(3, 8, threshold=0.5, surrogate="arctan"),
    "LSTMLayer(3, 8)": LSTMLayer(3, 8),
    "Readout(8, 2)": Readout(8, 2),
    "Readout(32, 2, unit_dims=3)": Readout(32, 2, unit_dims=3),
}


@pytest.mark.parametrize("text", SHOWN)
def test_modules_tell_their_sizes(text):
    assert repr(SHOWN[text]) == text


def test_a_spike_of_nan_is_nan_so_that_the_loss_tells():
    layer = SpikingLayer(2, 3)
    (spikes, _), _ = layer(torch.tensor([[float("nan"), 1.0], [1.0, 1.0]]), layer.zero_state(2))
    assert spikes[0].isnan().all()
    assert spikes[1].isfinite().all()


@pytest.mark.parametrize("kind", [COLA, BPTT])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_an_input_that_is_not_finite_raises_also_where_the_output_hides_it(kind, bad):
    from pararnn_cola import NonFiniteLossError

    network = Network(SpikingLayer(2, 3), Readout(3, 1))
    learner = kind(network)
    weights = [p.detach().clone() for p in network.parameters()]
    with pytest.raises(NonFiniteLossError, match=r"is not finite|is nan"):
        learner.step(torch.tensor([[bad, 1.0], [1.0, 1.0]]), torch.zeros(2, 1))
    assert all(torch.equal(p, before) for p, before in zip(network.parameters(), weights, strict=True))
    assert learner.steps == 0


def test_a_cell_answers_inputs_of_other_features_with_the_numbers():
    network = Network(CellLayer(RNNLayer(3, 8)), Readout(8, 2))
    with pytest.raises(ShapeError, match=re.escape("RNNLayer cannot take inputs (4, 5)")):
        BPTT(network).step(torch.randn(4, 5), torch.randn(4, 2))


def test_a_loss_that_is_a_mean_over_the_batch_is_answered_with_the_built_in_one():
    with pytest.raises(ShapeError, match='loss="mse" and loss="cross_entropy" are built in'):
        COLA(Network.rnn(3, 8, 2), loss=F.mse_loss).step(torch.randn(4, 3), torch.randn(4, 2))
