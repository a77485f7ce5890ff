from __future__ import annotations

import math

import pytest
import torch

from pararnn_cola.study.presets import TEN
from pararnn_cola.study.runner import run_entry
from pararnn_cola.study.settings import Entry

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

RULES = {
    "COLA": ({}, ({"rho": 0.9, "margin": 0.1}, {"rho": 0.99, "margin": 0.3})),
    "TBPTT1": ({}, ({"hidden_gain": 1.0}, {"hidden_gain": 10.0})),
    "SnAp1": ({}, ({},)),
    "BPTT": ({}, ({},)),
    "TBPTT": (TEN, ({},)),
}


@pytest.fixture(params=RULES)
def rule_entry(request, small):
    fixed, varied = RULES[request.param]
    small.update(task_options={"length": 24, "placement": 0.5}, iterations=8, state_size=16)
    return Entry(rule=request.param, rule_options=fixed, varied=varied, clips=(1.0, None), **small)


def test_a_captured_entry_is_the_one_that_was_launched_step_by_step(rule_entry):
    captured = run_entry(rule_entry, device="cuda")
    launched = run_entry(rule_entry, device="cuda", graph=False)
    assert captured[0].facts["cuda_graph"]
    assert not launched[0].facts["cuda_graph"]
    for one, two in zip(captured, launched, strict=True):
        assert one.train == pytest.approx(two.train, rel=1e-6)
        for name, values in one.metrics.items():
            assert values == pytest.approx(two.metrics[name], rel=1e-5)
        for name, values in one.diagnostics.items():
            assert values == pytest.approx(two.diagnostics[name], rel=1e-4)


def test_an_entry_on_the_gpu_is_the_one_on_the_cpu(rule_entry):
    for one, two in zip(run_entry(rule_entry, device="cuda"), run_entry(rule_entry), strict=True):
        assert one.train == pytest.approx(two.train, rel=1e-3)


@pytest.mark.parametrize("rule", ["COLA", "TBPTT1"])
def test_updates_at_every_step_are_captured_too(small, rule):
    entry = Entry(rule=rule, update="step", **{**small, "iterations": 8})
    for one, two in zip(run_entry(entry, device="cuda"), run_entry(entry, device="cuda", graph=False), strict=True):
        assert one.train == pytest.approx(two.train, rel=1e-5)


def test_a_captured_run_that_diverges_is_reported(small):
    small.update(optimizers=(("sgd", 1e30), ("sgd", 0.1)), clips=(None,), iterations=8)
    wild, tame = run_entry(Entry(rule="TBPTT1", **small), device="cuda")
    assert wild.mean_train == math.inf
    assert all(map(math.isfinite, tame.train))
