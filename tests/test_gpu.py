"""The core and its first family on a GPU: the same answers as the walk on the CPU, in the plain PyTorch backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pararnn
from pararnn import Diagonal, NewtonConfig, ParaRNN, scan, verify_agreement
from pararnn.conformance.tolerances import tolerance as tolerance_of
from pararnn.scans.reference import walk

pytestmark = pytest.mark.gpu


def irregular(batch: int, length: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(batch, length, 8, generator=generator, dtype=torch.float64)
    elapsed = 0.05 + torch.rand(batch, length, 1, generator=generator, dtype=torch.float64)
    return torch.cat((features, elapsed), dim=-1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [1, 33, 4097], ids="T{}".format)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_scan_on_the_gpu_equals_the_walk_on_the_cpu(dtype: torch.dtype, length: int, reverse: bool) -> None:
    torch.manual_seed(0)
    decay, term, initial = (torch.rand(2, length, 7, dtype=dtype) for _ in range(3))
    initial = initial[:, 0]
    states = scan(Diagonal(decay.cuda()), term.cuda(), initial.cuda(), reverse=reverse)
    torch.testing.assert_close(states.cpu(), walk(Diagonal(decay), term, initial, reverse=reverse), **tolerance_of(dtype, "states"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("interval", [1, 16, "auto", "parallel"], ids="interval-{}".format)
@pytest.mark.parametrize("gate_mix", ["input", "diag_h"])
def test_parallel_cfc_on_the_gpu_agrees_with_the_walk(dtype: torch.dtype, interval: int | str, gate_mix: str) -> None:
    torch.manual_seed(0)
    rnn = ParaRNN(pararnn.ParaCfC(9, 16, gate_mix=gate_mix, dtype=dtype), num_layers=2).cuda()
    report = verify_agreement(rnn, irregular(2, 1025, dtype).cuda(), config=NewtonConfig(interval=interval))
    assert report.ok, str(report)


def test_packed_sequences_on_the_gpu_agree_with_the_walk() -> None:
    torch.manual_seed(0)
    rnn = ParaRNN(pararnn.ParaCfC(9, 16, dtype=torch.float64)).cuda()
    offsets = torch.tensor([0, 0, 5, 300, 300, 1000], device="cuda")
    starts = torch.randn(5, 16, dtype=torch.float64, device="cuda")
    report = verify_agreement(rnn, irregular(1, 1000, torch.float64).cuda(), h0=starts, cu_seqlens=offsets)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", ["CfCCell", "WiredCfC", "MixedMemoryCell"])
def test_dense_cells_on_the_gpu_agree_with_the_walk(name: str) -> None:
    cell, x = pararnn.cells[name].spec.load_example()(2, 130, seed=0)
    report = verify_agreement(cell.cuda(), x.cuda())
    assert report.ok, str(report)


def test_an_ensemble_on_the_gpu_equals_its_members() -> None:
    torch.manual_seed(0)
    members = [ParaRNN(pararnn.ParaCfC(9, 8, dtype=torch.float64)).cuda() for _ in range(3)]
    x = irregular(2, 200, torch.float64).cuda()
    weights, buffers = torch.func.stack_module_state(members)
    together = torch.func.vmap(lambda w, b: torch.func.functional_call(members[0], (w, b), (x,)))(weights, buffers)
    torch.testing.assert_close(together, torch.stack([member(x) for member in members]))


def test_decoding_on_the_gpu_equals_the_whole() -> None:
    torch.manual_seed(0)
    rnn = ParaRNN(pararnn.ParaCfC(9, 8, dtype=torch.float64)).cuda()
    x = irregular(2, 20, torch.float64).cuda()
    states, outputs = None, []
    for sample in x.unbind(1):
        output, states = rnn.step(sample, states)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, dim=1), rnn(x))


def test_bfloat16_modules_on_the_gpu_keep_float32_states() -> None:
    torch.manual_seed(0)
    rnn = ParaRNN(pararnn.ParaCfC(9, 8, dtype=torch.bfloat16)).cuda()
    output, (result,) = rnn.solve(irregular(2, 300, torch.bfloat16).cuda())
    assert (output.dtype, result.states.dtype) == (torch.bfloat16, torch.float32)
