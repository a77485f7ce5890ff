"""What the digits study may claim, and what it must be able to do."""

import json
from statistics import mean

import pytest
import torch
from click.testing import CliRunner
from digits_models import BY_NAME, MODELS, Block
from digits_study import Training, classifier, digits, main, study
from rich.progress import Progress

MOVING = ("Bucket 5", "Trig 2", "Legendre 4")


@pytest.fixture(scope="module")
def gains():
    """Points above Con-ResNet, seed by seed, of the models that the acceptance is about."""
    quiet = Progress(disable=True)
    outcomes, _ = study(("Con-ResNet", "AppNODE", *MOVING), seeds=6, block=Block(), training=Training(), progress=quiet)
    return {outcome.name: outcome.gains for outcome in outcomes}


@pytest.mark.timeout(600)
def test_weights_that_move_beat_shared_ones_by_more_than_a_point(gains):
    assert mean(mean(gains[name]) for name in MOVING) > 1


@pytest.mark.timeout(600)
def test_appending_the_time_changes_less_than_a_point(gains):
    assert abs(mean(gains["AppNODE"])) < 1


@pytest.mark.parametrize("name", BY_NAME)
def test_models_of_all_seeds_together_score_as_each_alone(name):
    models = [classifier(BY_NAME[name], Block(dim=4, steps=10), seed) for seed in range(3)]
    x = torch.randn(3, 5, 4)
    weights, buffers = torch.func.stack_module_state(models)
    together = torch.vmap(lambda w, b, x: torch.func.functional_call(models[0], (w, b), (x,)))(weights, buffers, x)
    torch.testing.assert_close(together, torch.stack([model(one) for model, one in zip(models, x, strict=True)]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", [model for model in MODELS if model.matrices], ids=lambda model: model.name)
def test_the_table_states_how_many_matrices_there_are(model):
    dim = 4
    block = model.build(Block(dim=dim))
    matrices = sum(parameter.numel() for name, parameter in block.named_parameters() if "bias" not in name)
    extra = dim if model.name == "AppNODE" else 0
    assert matrices == model.matrices * dim**2 + extra


def test_images_of_training_and_test_are_different_and_all_there():
    data = digits(range(2), 12)
    assert data.x.shape == (2, 1347, 12)
    assert data.x_test.shape == (2, 450, 12)
    assert not torch.equal(data.labels[0], data.labels[1])


def test_the_program_writes_what_it_found(tmp_path):
    paths = [tmp_path / name for name in ("digits.json", "accuracy.png", "weights.png")]
    options = [word for pair in zip(("--json", "--figure", "--weights"), map(str, paths), strict=True) for word in pair]
    threads = torch.get_num_threads()
    try:
        result = CliRunner().invoke(main, ["Con-ResNet", "Trig 2", "Uncon-ResNet", "--epochs", "1", "--seeds", "2", *options], catch_exceptions=False)
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    found = json.loads(paths[0].read_text())
    assert found["settings"]["lr"] == 0.02
    assert [len(model["accuracies"]) for model in found["models"]] == [2, 2, 2]
    assert all(path.stat().st_size for path in paths[1:])
