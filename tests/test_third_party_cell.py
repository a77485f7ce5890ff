"""Somebody's channelwise cell, in plain PyTorch: it gets compiled kernels, and no line of ours is for it."""

from __future__ import annotations

import re
from pathlib import Path

import min_gru
import pytest
import torch
from torch import Tensor

import pararnn.compiler.gpu.backend
import pararnn.compiler.native.backend
from pararnn import NewtonConfig, ParaRNN, verify_agreement
from pararnn.selection import Request

# Both are tried where they can be: the C compiler may be missing on this machine.
NATIVE = () if pararnn.compiler.native.backend.engine().reasons(Request.of("solve", device="cpu")) else (("native", "cpu"),)
BACKENDS = [("torch", "cpu"), *NATIVE, pytest.param("triton", "cuda", marks=pytest.mark.gpu)]
SHAPES = [(2, 130, 7), (1, 3000, 5), (40, 33, 48)]

served = pytest.mark.parametrize(("backend", "device"), BACKENDS)


def sequences(batch: int, length: int, device: str, dtype: torch.dtype) -> Tensor:
    return torch.randn(batch, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def layer(state_size: int, backend: str, device: str, dtype: torch.dtype) -> ParaRNN:
    torch.manual_seed(0)
    return ParaRNN(min_gru.MinGRU(3, state_size), config=NewtonConfig(backend=backend)).to(device, dtype)


@served
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_states_and_all_gradients_are_those_of_the_walk(backend, device, shape, dtype):
    batch, length, size = shape
    report = verify_agreement(layer(size, backend, device, dtype), sequences(batch, length, device, dtype))
    assert report.ok, str(report)


@served
def test_the_backend_that_was_named_solves_it(backend, device):
    _, (result,) = layer(5, backend, device, torch.float32).solve(sequences(2, 300, device, torch.float32))
    assert result.backend == backend


@served
def test_its_decoder_steps_by_the_same_kernels(backend, device):
    model, x = layer(5, backend, device, torch.float64), sequences(4, 30, device, torch.float64)
    decoder = model.decoder(4)
    outputs = torch.stack([decoder.step(sample).clone() for sample in x.unbind(1)], dim=1)
    torch.testing.assert_close(outputs, model(x).detach(), rtol=1e-10, atol=1e-10)
    assert f"MinGRU: {backend}" in decoder.explain()


def test_no_file_of_the_packages_knows_it():
    root = Path(__file__).resolve().parent.parent
    sources = list((root / "packages").glob("*/src/**/*.py"))
    assert sources
    assert [path.name for path in sources if re.search(r"min_?gru", path.read_text(encoding="utf-8"), re.IGNORECASE)] == []
