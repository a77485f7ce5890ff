"""Layers, models and cells on a GPU against themselves on the CPU in double precision."""

import copy

import pytest
import torch

from pararnn import ParaRNN
from pararnn_s4 import S4, S4D, S4Model

pytestmark = pytest.mark.gpu
LIMITS = {torch.float64: 1e-10, torch.float32: 2e-5}
dtypes = pytest.mark.parametrize("dtype", list(LIMITS), ids=str)


def off(found, expected):
    return ((found.detach().cpu().to(expected.dtype) - expected).abs().max() / expected.abs().max().clamp_min(1e-12)).item()


def on_gpu(module, dtype):
    return copy.deepcopy(module).to("cuda", dtype)


@dtypes
@pytest.mark.parametrize("method", ["convolution", "scan"])
def test_outputs_states_and_gradients_are_those_of_the_cpu(kind, method, dtype, make, sequences):
    layer = make(kind, channels=2, method=method)
    x = sequences(length=130)
    state = torch.randn_like(layer.init_state(3))
    lengths = torch.tensor([130, 7, 0])
    y, after = layer(x, state, lengths=lengths, return_state=True)
    valid = torch.arange(130)[None, :, None] < lengths[:, None, None]
    (y * valid).square().sum().backward()
    there = on_gpu(layer, dtype)
    moved = x.to("cuda", dtype).requires_grad_()
    z, later = there(moved, state.cuda().to(there.ssm.state_dtype), lengths=lengths.cuda(), return_state=True)
    (z * valid.cuda()).square().sum().backward()
    assert off(z * valid.cuda(), y * valid) < LIMITS[dtype]
    assert off(later, after) < LIMITS[dtype]
    for name, parameter in layer.named_parameters():
        assert off(there.get_parameter(name).grad, parameter.grad) < 20 * LIMITS[dtype], name


@dtypes
def test_steps_and_decoders_follow_the_whole_sequence(family, dtype, make, sequences):
    layer = on_gpu(make(family), dtype).eval()
    x = sequences(length=21).to("cuda", dtype)
    whole = layer(x)
    decoder = layer.decoder()
    for step in (layer.step, decoder.step):
        state, outputs = layer.init_state(3), []
        for sample in x.unbind(1):
            y, state = step(sample, state)
            outputs.append(y)
        assert off(torch.stack(outputs, 1), whole.detach().cpu().double()) < LIMITS[dtype]


@pytest.mark.parametrize("kind", ["s4d", "s4", "s4-real"])
def test_the_cell_gives_the_outputs_of_the_layer(kind, make, sequences):
    layer = make(kind, final_act=None, activation=None).cuda()
    x = sequences(length=65).cuda()
    torch.testing.assert_close(ParaRNN(layer.cell())(x), layer(x), rtol=1e-9, atol=1e-9)


def test_half_precision_under_autocast_keeps_the_state_space_in_single(sequences):
    torch.manual_seed(0)
    model = S4Model(8, 4, d_model=16, n_layers=2, d_state=16).cuda().eval()
    x = sequences(length=500, dtype=torch.float32).cuda()
    expected = model(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = model(x)
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("layer", [S4, S4D])
def test_the_compiled_layer_gives_the_outputs_of_the_plain_one(layer, sequences):
    torch.manual_seed(0)
    module = layer(8, d_state=16).cuda()
    x = sequences(length=300, dtype=torch.float32).cuda()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [S4, S4D])
def test_a_long_sequence_in_single_precision_is_near_that_in_double(layer):
    torch.manual_seed(0)
    module = layer(4, d_state=64).cuda()
    x = torch.randn(1, 1 << 16, 4, device="cuda")
    wide = copy.deepcopy(module).double()
    assert off(module(x), wide(x.double()).detach().cpu()) < 1e-5
