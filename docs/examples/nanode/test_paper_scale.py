"""Every configuration builds, trains on small data, and asks for the large data in words."""

import json
import pickle

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from paper_scale import EXPERIMENTS, build, changed, main

SMALL = ["--small", "--epochs", "1"]


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("way", ["euler backprop", "euler checkpoint", "reversible_heun reversible"])
def test_every_experiment_trains_on_small_data(name, way, tmp_path):
    path = tmp_path / "results.json"
    method, gradient = way.split()
    result = invoke(name, *SMALL, "--set", f"method={method}", "--set", f"gradient={gradient}", "--json", path)
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["losses"][0] > 0


@pytest.mark.parametrize("path", ["constant", "bucket", "untied", "legendre", "trig"])
def test_image_networks_train_with_every_kind_of_weights(path):
    result = invoke("cifar100", *SMALL, "--set", f"path={path}")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("rest", ["convolutions", "constant", "trig"])
def test_video_networks_train_with_every_kind_of_groups(rest):
    result = invoke("moving-mnist", *SMALL, "--set", f"rest={rest}")
    assert result.exit_code == 0, result.output


def test_a_small_image_network_learns():
    result = invoke("cifar100", "--small", "--epochs", "8")
    assert result.exit_code == 0, result.output
    assert float(result.output.split(":")[-2].split()[-1]) > 0.5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_networks_of_full_size_have_the_shapes_of_their_data(name):
    experiment = EXPERIMENTS[name]
    model = build(experiment, experiment.config)
    with torch.no_grad():
        if name == "cifar100":
            assert model(torch.rand(2, 3, 32, 32)).shape == (2, 100)
        else:
            assert model(torch.rand(1, 6, 64, 64))[0].isfinite()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_absent_data_is_an_error_that_says_where_it_is_had(name, tmp_path):
    for arguments in ((), ("--data", tmp_path / "nowhere")):
        result = invoke(name, *arguments)
        assert result.exit_code == 1
        assert "https://" in result.output
        assert "--small" in result.output


def test_cifar_is_read_as_its_authors_give_it_out(tmp_path):
    random = np.random.default_rng(0)
    for name in ("train", "test"):
        content = {b"data": random.integers(0, 256, (8, 3072), dtype=np.uint8), b"fine_labels": random.integers(0, 100, 8).tolist()}
        (tmp_path / name).write_bytes(pickle.dumps(content))
    result = invoke("cifar100", "--data", tmp_path, "--epochs", "1", "--batch", "4", "--set", "widths=16,32", "--set", "steps=4", "--set", "order=1")
    assert result.exit_code == 0, result.output


def test_moving_mnist_is_read_as_its_authors_give_it_out(tmp_path):
    np.save(tmp_path / "mnist.npy", np.random.default_rng(0).integers(0, 256, (6, 20, 64, 64), dtype=np.uint8))
    arguments = ("--epochs", "1", "--batch", "9", "--set", "channels=4", "--set", "vector=8")
    result = invoke("moving-mnist", "--data", tmp_path / "mnist.npy", *arguments)
    assert result.exit_code == 0, result.output


def test_a_setting_that_does_not_exist_is_named_with_those_that_do():
    result = invoke("cifar100", "--small", "--set", "depth=3")
    assert result.exit_code == 2
    assert "depth" in result.output
    assert "steps" in result.output


def test_nested_settings_are_found_by_their_names():
    config = changed(EXPERIMENTS["moving-mnist"].config, {"order": "1", "z": "4"})
    assert (config.images.order, config.z) == (1, 4)
