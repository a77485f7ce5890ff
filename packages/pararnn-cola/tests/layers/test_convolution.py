from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import COLA, TBPTT1, ConvLayer, Network, Readout, RNNLayer
from pararnn_cola.layers.krylov import largest_singular_value

SIZES = pytest.mark.parametrize("size", [(5, 4), (1, 1), (7,), (1,), (2, 9)], ids=str)
KERNELS = pytest.mark.parametrize("kernel", [1, 3, 5], ids="K{}".format)


def maps(size, kernel=3, channels=3, **options):
    return ConvLayer(2, channels, kernel, size=size, generator=torch.Generator().manual_seed(4), dtype=torch.float64, **options)


def dense(layer):
    """The recurrent convolution as a matrix, a column for each entry of `h`."""
    convolve = nn.functional.conv2d if len(layer.size) == 2 else nn.functional.conv1d
    units = layer.zero_state(1)[0].numel()
    basis = torch.eye(units, dtype=torch.float64).view(units, layer.channels, *layer.size)
    return convolve(basis, layer.weight_hh.detach(), padding="same").flatten(1).mT


@SIZES
@KERNELS
def test_a_step_is_two_convolutions_of_torch(size, kernel):
    layer = maps(size, kernel)
    module = nn.Conv2d if len(size) == 2 else nn.Conv1d
    feeding = module(2, 3, kernel, padding="same", dtype=torch.float64)
    recurrent = module(3, 3, kernel, padding="same", bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.bias.normal_()
        feeding.weight.copy_(layer.weight_ih)
        feeding.bias.copy_(layer.bias)
        recurrent.weight.copy_(layer.weight_hh)
    u, h = torch.randn(3, 2, *size, dtype=torch.float64), torch.randn(3, 3, *size, dtype=torch.float64)
    assert_close(layer(u, (h,))[0][0], torch.tanh(feeding(u) + recurrent(h)), rtol=1e-13, atol=1e-13)


@SIZES
@KERNELS
def test_signals_go_back_through_the_transpose_of_the_operator(size, kernel):
    layer = maps(size, kernel)
    signal = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = signal.flatten(1) @ dense(layer)
    assert_close(layer.signal_to_previous(signal, None).flatten(1), expected, rtol=1e-12, atol=1e-13)


@SIZES
@KERNELS
def test_the_operator_norm_is_that_of_the_dense_matrix(size, kernel):
    layer = maps(size, kernel)
    assert layer.operator_norm().item() == pytest.approx(torch.linalg.matrix_norm(dense(layer), 2).item(), rel=1e-11)


def test_the_operator_norm_is_right_where_plain_power_iteration_would_crawl():
    layer = maps((24, 20), channels=1)
    with torch.no_grad():
        # A smoothing kernel: singular values crowd just below the largest one.
        layer.weight_hh.copy_(torch.ones(3, 3, dtype=torch.float64) / 9)
    exact = torch.linalg.matrix_norm(dense(layer), 2).item()
    assert layer.operator_norm().item() == pytest.approx(exact, rel=1e-11)
    assert exact < 1.0


def test_the_operator_norm_is_not_that_of_the_reshaped_kernel():
    layer = maps((6, 6))
    reshaped = torch.linalg.matrix_norm(layer.weight_hh.flatten(1), 2)
    assert abs(layer.operator_norm() / reshaped - 1) > 0.05


def test_the_norm_of_a_map_to_zero_is_zero():
    layer = maps((4, 4))
    with torch.no_grad():
        layer.weight_hh.zero_()
    assert layer.operator_norm().item() == 0.0


def test_the_norm_of_a_multiple_of_the_identity_needs_one_step():
    calls = []

    def triple(x):
        calls.append(x)
        return 3 * x

    assert largest_singular_value(triple, lambda y: 3 * y, torch.ones(50, dtype=torch.float64)).item() == pytest.approx(3)
    assert len(calls) == 1


@pytest.mark.parametrize("pool_positions", [True, False], ids=["pooled", "per position"])
def test_means_are_over_batch_and_positions_or_over_the_batch_alone(pool_positions):
    layer = maps((4, 5), pool_positions=pool_positions)
    values, rows = torch.randn(6, 3, 4, 5, dtype=torch.float64), torch.tensor([True, False, True, True, False, False])
    over = (0, 2, 3) if pool_positions else (0,)
    assert_close(layer.pool(values), values.mean(over))
    assert_close(layer.pool(values, rows), values[rows].mean(over))
    assert_close(layer.peak(values), values.amax(over))
    assert_close(layer.pool(values, torch.zeros(6, dtype=torch.bool)), torch.zeros_like(layer.pool(values)), rtol=0, atol=0)
    spread = layer.spread(layer.pool(values)).expand_as(values[:1])
    assert_close(spread, values.mean(over, keepdim=True).expand_as(values[:1]))


@pytest.mark.parametrize("project", ["use", "estimate"])
def test_a_map_of_one_position_has_the_statistics_of_a_dense_layer(project):
    vector = Network(RNNLayer(2, 3, dtype=torch.float64), Readout(3, 2, dtype=torch.float64))
    mapped = Network(maps((1, 1), kernel=1), Readout(3, 2, unit_dims=3, dtype=torch.float64))
    with torch.no_grad():
        for name, parameter in vector.named_parameters():
            mapped.get_parameter(name).copy_(parameter.view_as(mapped.get_parameter(name)))
    learners = [COLA(net, project=project, update="accumulate") for net in (vector, mapped)]
    for u, y in zip(torch.randn(9, 4, 2, dtype=torch.float64), torch.randn(9, 4, 2, dtype=torch.float64), strict=True):
        learners[0].step(u, y)
        learners[1].step(u[..., None, None], y)
    for name, parameter in vector.named_parameters():
        assert_close(mapped.get_parameter(name).grad.view_as(parameter), parameter.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pool_positions", [True, False], ids=["pooled", "per position"])
def test_cola_keeps_one_coefficient_for_what_it_pools(pool_positions):
    layer = maps((4, 5), pool_positions=pool_positions)
    learner = COLA(Network(layer, Readout(60, 2, unit_dims=3, dtype=torch.float64)))
    for _ in range(4):
        learner.step(torch.randn(2, 2, 4, 5, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64))
    mu = learner.statistics[0].mu
    assert mu.shape == ((3,) if pool_positions else (3, 4, 5))
    assert bool((mu != 0).all())


def test_channels_last_inputs_change_nothing():
    nets = [Network(maps((4, 5)), Readout(60, 2, unit_dims=3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)) for _ in range(2)]
    u, y = torch.randn(3, 2, 4, 5, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    for net, given in zip(nets, (u, u.contiguous(memory_format=torch.channels_last)), strict=True):
        learner = TBPTT1(net, update="accumulate")
        learner.step(given, y)
        learner.step(given, y)
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert_close(two.grad, one.grad, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"kernel_size": 2}, "kernel_size=2; an odd one"),
        ({"kernel_size": 0}, "kernel_size=0"),
        ({"size": (2, 2, 2)}, r"size=\(2, 2, 2\)"),
        ({"size": (0, 4)}, r"size=\(0, 4\)"),
        ({"channels": 0}, "channels=0"),
    ],
    ids=str,
)
def test_settings_that_make_no_maps_are_refused(changes, match):
    settings = {"in_channels": 2, "channels": 3, "kernel_size": 3, "size": (4, 4)} | changes
    with pytest.raises(ConfigError, match=match):
        ConvLayer(**settings)


def test_inputs_of_another_size_are_refused_with_both_sizes():
    layer = maps((4, 5))
    with pytest.raises(ShapeError, match=r"\(batch, 2, 4, 5\).*\(3, 2, 5, 4\)"):
        layer(torch.zeros(3, 2, 5, 4, dtype=torch.float64), layer.zero_state(3))


def test_ensembles_are_refused_by_name():
    with pytest.raises(ShapeError, match=r"no ensembles.*\(2, 3\)"):
        maps((4, 5)).zero_state(2, 3)
    stacked = maps((4, 5))
    for name, parameter in list(stacked.named_parameters()):
        setattr(stacked, name, nn.Parameter(torch.stack([parameter.detach()] * 2)))
    with pytest.raises(ShapeError, match="no ensembles"):
        stacked.zero_state(3)
