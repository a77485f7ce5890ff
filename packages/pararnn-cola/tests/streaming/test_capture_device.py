import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola import capture


def test_a_network_on_the_cpu_is_not_captured(learner, make_stream):
    with pytest.raises(ConfigError, match="CUDA"):
        capture(learner, *next(make_stream(1)))
    assert learner.steps == 0
    assert not torch.cuda.is_initialized()
