"""What `CfC` refuses, and that the message says what to do."""

from __future__ import annotations

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_cfc.cfc import CfC
from pararnn_cfc.ncps_cell import CfCCell
from pararnn_cfc.wired import WiredCfC

# The oracle is an extra of its own; without it the matrix sessions still run these tests.
ncps_wirings = pytest.importorskip("ncps.wirings")
AutoNCP = ncps_wirings.AutoNCP
FullyConnected = ncps_wirings.FullyConnected
Wiring = ncps_wirings.Wiring

OPTIONS = {
    "mode": ({"mode": "fast"}, "mode 'fast' is unknown; choose one of default, pure, no_gate"),
    "activation": ({"activation": "sine"}, "activation 'sine' is unknown; choose one of silu"),
    "solver": ({"solver": "magic"}, "solver 'magic' is unknown; choose one of auto, newton, sequential"),
    "units": ({"units": 0}, "units=0"),
    "units-float": ({"units": 2.5}, "must be integers"),
    "input": ({"input_size": 0}, "input_size=0"),
    "no-input": ({"input_size": None}, "must be integers"),
    "layers": ({"backbone_layers": -1}, "backbone_layers=-1"),
    "backbone-units": ({"backbone_units": 0}, "backbone_units=0"),
    "dropout": ({"backbone_layers": 2, "backbone_dropout": 1.5}, "probability, got 1.5"),
    "projection": ({"proj_size": 0}, "proj_size must be at least 1"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CfC(**({"input_size": 3, "units": 4} | options))


@pytest.mark.parametrize("option", ["backbone_units", "backbone_layers", "backbone_dropout"])
def test_a_wired_network_refuses_backbone_options(option):
    with pytest.raises(ConfigError, match=f"no backbone, so {option} cannot be set"):
        CfC(3, AutoNCP(8, 2), **{option: 1})


def test_a_wiring_built_for_other_features_is_refused():
    wiring = FullyConnected(6)
    wiring.build(3)
    with pytest.raises(ConfigError, match="built for 3 features but input_size is 4"):
        CfC(4, wiring)


def test_a_wiring_that_does_not_know_its_features_is_refused():
    with pytest.raises(ConfigError, match=r"does not know its number of features; pass input_size"):
        CfC(None, FullyConnected(6))


def test_layers_that_leave_out_a_neuron_are_refused():
    class Half(Wiring):
        def get_neurons_of_layer(self, layer_id):
            return [0, 1]

    with pytest.raises(ConfigError, match=r"sizes \[2\], do not hold each of its 4 neurons once"):
        CfC(3, Half(4))


@pytest.mark.parametrize("shape", [(2, 6, 2), (6, 4), (3,), (2, 5, 6, 3)], ids=str)
def test_inputs_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match=r"takes inputs of shape \(time, 3\) or \(batch, time, 3\), got"):
        CfC(3, 4)(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (4,), (2, 6, 4)], ids=str)
def test_states_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match=r"hx must have shape \(2, 4\)"):
        CfC(3, 4)(torch.zeros(2, 6, 3), torch.zeros(shape))


def test_an_unbatched_state_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match=r"hx must have shape \(4,\)"):
        CfC(3, 4)(torch.zeros(6, 3), torch.zeros(1, 4))


@pytest.mark.parametrize("state", [torch.zeros(2, 4), (torch.zeros(2, 4),), (torch.zeros(2, 4),) * 3], ids=["tensor", "one", "three"])
def test_mixed_memory_asks_for_a_pair(state):
    with pytest.raises(ShapeError, match="hx must be a pair"):
        CfC(3, 4, mixed_memory=True)(torch.zeros(2, 6, 3), state)


def test_a_pair_without_mixed_memory_is_refused():
    with pytest.raises(ShapeError, match="hx must be one tensor"):
        CfC(3, 4)(torch.zeros(2, 6, 3), (torch.zeros(2, 4), torch.zeros(2, 4)))


@pytest.mark.parametrize("shape", [(2, 5), (3, 6), (6, 2), (2, 6, 3), (2, 6, 1, 1), (5,)], ids=str)
def test_gaps_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match=r"do not fit 2 sequence\(s\) of 6 samples; pass a number, \(time,\), \(batch, time\) or \(batch, time, 1\)"):
        CfC(3, 4)(torch.zeros(2, 6, 3), timespans=torch.ones(shape))


@pytest.mark.parametrize("shape", [(5,), (1, 6), (6, 2), (1, 6, 1)], ids=str)
def test_unbatched_gaps_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match=r"1 sequence\(s\) of 6 samples; pass a number, \(time,\) or \(time, 1\)"):
        CfC(3, 4)(torch.zeros(6, 3), timespans=torch.ones(shape))


@pytest.mark.parametrize("gaps", [torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 6, dtype=torch.complex64), [1.0] * 6, True], ids=repr)
def test_gaps_that_are_no_real_numbers_are_refused(gaps):
    with pytest.raises(DTypeError, match="timespans must be"):
        CfC(3, 4)(torch.zeros(2, 6, 3), timespans=gaps)


def test_inputs_of_another_dtype_are_refused():
    with pytest.raises(DTypeError, match=r"weights are torch\.float32 but the input is torch\.float64"):
        CfC(3, 4)(torch.zeros(2, 6, 3, dtype=torch.float64))


def test_states_of_another_dtype_are_refused():
    with pytest.raises(DTypeError, match=r"input is torch\.float32 but hx is torch\.float64"):
        CfC(3, 4)(torch.zeros(2, 6, 3), torch.zeros(2, 4, dtype=torch.float64))


def test_a_parallel_configuration_for_the_walk_is_refused():
    with pytest.raises(ConfigError, match="solver='sequential' walks"):
        CfC(3, 4, solver="sequential", config=object())


@pytest.mark.parametrize("cell", [CfCCell(3, 4), WiredCfC(3, AutoNCP(8, 2))], ids=["plain", "wired"])
def test_a_cell_says_where_elapsed_time_belongs(cell):
    with pytest.raises(ShapeError, match="3 features and elapsed time in one more channel"):
        cell.drive(torch.zeros(2, 6, 3))
