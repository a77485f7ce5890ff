"""The planner weighs a convolution against a scan."""

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_s4.planner import explain, plan

LAYER = {"d_model": 64, "state": 64}


def test_short_sequences_are_convolved_and_long_ones_scanned_on_a_cpu():
    assert plan(batch=1, length=64, **LAYER).method == "convolution"
    assert plan(batch=1, length=65536, **LAYER).method == "scan"


# The faster method, where it took at most 0.7 of the time of the other, forward and backward on one core.
@pytest.mark.parametrize(
    ("batch", "length", "d_model", "state", "dplr", "faster"),
    [
        (1, 4096, 64, 64, True, "convolution"),
        (4, 1024, 128, 16, True, "convolution"),
        (16, 256, 128, 16, True, "convolution"),
        (16, 16384, 16, 16, True, "scan"),
        (1, 65536, 128, 16, True, "scan"),
        (4, 1024, 128, 16, False, "convolution"),
        (4, 4096, 64, 64, False, "convolution"),
        (16, 16384, 64, 64, False, "convolution"),
        (4, 65536, 16, 16, False, "scan"),
        (1, 65536, 64, 64, False, "scan"),
    ],
)
def test_the_method_that_was_measured_to_be_faster_is_chosen_on_a_cpu(batch, length, d_model, state, dplr, faster):
    assert plan(batch=batch, length=length, d_model=d_model, state=state, dplr=dplr).method == faster


def test_one_long_sequence_through_a_model_of_low_rank_is_convolved_up_to_16384_steps():
    assert plan(batch=1, length=16384, dplr=True, **LAYER).method == "convolution"
    assert plan(batch=1, length=65536, dplr=True, **LAYER).method == "scan"


def test_a_gpu_convolves():
    assert plan(batch=16, length=4096, device="cuda:0", **LAYER).method == "convolution"


def test_states_speak_for_the_scan():
    without, after, both = (
        plan(batch=1, length=1024, has_state=before, needs_state=behind, dplr=True, **LAYER)
        for before, behind in ((False, False), (False, True), (True, True))
    )
    assert without.convolution < after.convolution < both.convolution
    assert without.scan == after.scan == both.scan
    assert both.method == "scan"


def test_the_reason_holds_both_estimates():
    sentence = explain(batch=2, length=100, **LAYER)
    assert sentence.startswith("convolution, because 2 sequences of 100 steps are estimated at ")
    assert sentence == plan(batch=2, length=100, device=torch.device("cpu"), **LAYER).explain()


@pytest.mark.parametrize("batch", [0, 1])
def test_nothing_can_be_planned_too(batch):
    assert plan(batch=batch, length=0, **LAYER).method == "convolution"


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="batch=-1"):
        plan(batch=-1, length=3, **LAYER)
    with pytest.raises(ConfigError, match="d_model=0"):
        plan(batch=1, length=3, d_model=0, state=3)
