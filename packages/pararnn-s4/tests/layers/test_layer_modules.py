"""Layers as modules: what is saved, copied, moved, dropped."""

import copy
import pickle

import pytest
import torch

from pararnn.errors import ConfigError


def test_every_tensor_has_one_name(make, kind):
    layer = make(kind, gate=2, bottleneck=2)
    tensors = layer.state_dict(keep_vars=True)
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == len(tensors)
    assert dict(layer.named_buffers()) == {}


def test_weights_survive_safetensors(make, kind, sequences, close, tmp_path):
    layer, other = make(kind), make(kind)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    layer(sequences())
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "layer.safetensors"))
    close(other(sequences()), layer(sequences()), atol=0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deepcopy", "pickle"])
def test_copies_are_independent_and_equal(make, kind, sequences, walk, close, duplicate):
    layer, x = make(kind, dropout=0.1, tie_dropout=True).eval(), sequences()
    y = layer(x)
    twin = duplicate(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    close(twin(x), y, atol=0)
    close(walk(twin, x, twin.init_state(3))[0], y)


def test_a_decoder_is_a_snapshot(make, family, sequences, close):
    layer, x = make(family).eval(), sequences()
    decoder = layer.decoder()
    y = layer(x)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(2)
    close(decoder.step(x[:, 0], decoder.init_state(3))[0], y[:, 0])
    assert layer.ssm is not None


def test_a_layer_can_be_built_without_memory_and_moved(make, kind):
    with torch.device("meta"):
        layer = make(kind)
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}


def test_sizes_are_shown(make):
    assert "d_model=8, channels=2, bidirectional=False, transposed=False" in repr(make("s4d", channels=2))


@pytest.mark.parametrize("tie", [False, True], ids=["each sample", "tied"])
def test_dropout_is_applied_once_with_the_right_probability(make, family, sequences, tie):
    layer = make(family, activation=None, final_act=None, dropout=0.3, tie_dropout=tie)
    x = sequences(batch=50, length=40)
    torch.manual_seed(0)
    y = layer(x)
    expected = layer.eval()(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], expected[kept] / 0.7, rtol=1e-10, atol=0)
    assert abs(kept.double().mean().item() - 0.7) < (0.07 if tie else 0.015)
    assert (kept == kept[:, :1]).all() == tie


def test_kernel_dropout_acts_in_training_alone_and_spares_the_skip(make, family, sequences, close):
    layer, x = make(family, activation=None, final_act=None, drop_kernel=0.5), sequences()
    y = layer.eval()(x)
    close(layer(x), y, atol=0)
    layer.train()
    assert not torch.equal(layer(x), y)
    with torch.no_grad():
        layer.ssm.C.zero_()
    close(layer(x), layer.D * x)


def test_steps_in_training_refuse_masks_of_whole_sequences(make, sequences):
    x = sequences()[:, 0]
    for options, name in (({"dropout": 0.1, "tie_dropout": True}, "tie_dropout"), ({"drop_kernel": 0.1}, "drop_kernel")):
        layer = make("s4d", **options)
        with pytest.raises(ConfigError, match=rf"{name}.*eval\(\)"):
            layer.step(x, layer.init_state(3))
        layer.eval().step(x, layer.init_state(3))


def test_steps_in_training_drop_each_sample_by_itself(make, sequences):
    layer = make("s4d", activation=None, final_act=None, dropout=0.5)
    y, _ = layer.step(sequences(batch=400)[:, 0], layer.init_state(400))
    assert abs((y == 0).double().mean().item() - 0.5) < 0.05


def test_half_the_state_is_kept_of_complex_state_spaces(make):
    assert make("s4").init_state(2).shape == (2, 8, 4)
    assert make("s4-real").init_state(2).shape == (2, 8, 8)
    assert make("s4d", bottleneck=2).init_state(2).shape == (2, 4, 4)
