"""The networks learn to see where digits go, and keep what their gradient promises."""

import json
from dataclasses import replace

import pytest
import torch
from bouncing import handwritten, videos
from click.testing import CliRunner
from moving_digits import Training, main, memory, network, train
from rich.progress import Progress
from video_model import VideoConfig


@pytest.mark.parametrize("rest", ["convolutions", "constant", "trig"])
def test_a_short_training_beats_repeating_the_last_frame(rest):
    sprites, new_sprites = handwritten()
    training = Training(updates=60, train_videos=100, test_videos=20, lr=5e-3)
    film, test = videos(sprites, training.train_videos, seed=1), videos(new_sprites, training.test_videos, seed=2)
    outcome, _ = train(VideoConfig(rest=rest, channels=8), training, 0, film, test, Progress(disable=True))
    assert outcome.test_error < 0.7 * outcome.copy_error


def test_every_way_to_the_gradient_gives_the_same_gradient():
    frames = torch.rand(2, 3, 24, 24)
    config = VideoConfig(channels=4, method="reversible_heun")
    gradients = []
    for gradient in ("backprop", "checkpoint", "reversible"):
        model = network(replace(config, gradient=gradient), seed=0)
        gradients.append(torch.autograd.grad(model(frames).square().sum(), tuple(model.parameters())))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-3, atol=1e-4)


def test_blocks_keep_less_where_their_gradient_says_so():
    kept = {(one.gradient, one.steps): one.bytes for one in memory(VideoConfig(channels=4), torch.rand(2, 3, 24, 24), (3, 30))}
    assert kept["reversible", 3] == kept["reversible", 30] < kept["checkpoint", 30] < kept["backprop", 30]


def test_the_program_writes_what_it_found(tmp_path):
    path, figure = tmp_path / "video.json", tmp_path / "video.png"
    arguments = ["--updates", "3", "--videos", "8", "--batch", "4", "--channels", "4", "--depth", "3", "--json", str(path), "--figure", str(figure)]
    threads = torch.get_num_threads()
    try:
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert [one["rest"] for one in json.loads(path.read_text())["models"]] == ["convolutions", "constant", "trig"]
    assert figure.stat().st_size
