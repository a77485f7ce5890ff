"""Launches of the diagonal scan in Triton, and what they give beside what the definition gives.

On the CPU where TRITON_INTERPRET is set, which takes a process of its own; on a GPU also with the tiles that are launched there.
"""

import pytest
import torch

from pararnn.scans import scan
from pararnn.scans.launches import Launch
from pararnn.structures.diagonal import Diagonal

# The interpreter takes a maximum as numpy does, which warns where all numbers are none.
quiet_about_maxima = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
# Tiles of four lanes, so that few numbers have edges of every kind: of tiles, groups, eras and blocks of channels. On a GPU a lane is a thread.
TILES = {
    "stream": Launch(variant="stream", block_time=4, block_state=4, groups=2),
    "walk": Launch(variant="walk", block_time=4, block_state=4),
    "chain": Launch(variant="chain", block_time=4, block_state=4, groups=2, group=4),
    "tiles": Launch(variant="tiles", block_time=4, block_state=4, group=2),
}
ON_GPU = {
    "stream": Launch(variant="stream", block_time=8, block_state=8, groups=4),
    "walk": Launch(variant="walk", block_time=8),
    "chain": Launch(variant="chain", block_time=16, groups=2, group=4, warps=2),
    "tiles": Launch(variant="tiles", block_time=8, group=2),
    "auto": None,
}
gpu_places = [pytest.param((launch, "cuda"), id=f"{name}, gpu", marks=pytest.mark.gpu) for name, launch in ON_GPU.items()]
all_places = [*(pytest.param((launch, "cpu"), id=name) for name, launch in TILES.items()), *gpu_places]
everywhere = pytest.mark.parametrize("place", all_places)
# The stream and the chain are for real numbers.
REAL = ("stream", "chain")
complex_places = pytest.mark.parametrize("place", [place for place in all_places if not place.id.startswith(REAL)])
on_gpu = pytest.mark.parametrize("place", gpu_places)
auto_on_gpu = pytest.mark.parametrize("place", gpu_places[-1:])
# Of large shapes, to what double precision gives.
BOUNDS = {torch.float64: 1e-12, torch.float32: 4e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}
STRIDES = {
    "time last": lambda tensor: tensor.mT.contiguous().mT,
    "time first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "every third channel": lambda tensor: tensor.repeat_interleave(3, dim=2)[..., ::3],
    "one step for all": lambda tensor: tensor[:, :1].expand_as(tensor),
    "one channel for all": lambda tensor: tensor[..., :1].contiguous().expand_as(tensor),
    "one number for all": lambda tensor: tensor[:1, :1, :1].expand_as(tensor),
}


def results(maps, bias, start, grad, **options):
    """States and gradients of maps, terms and initial state through the public function."""
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in (maps, bias, start)]
    packed = "cu_seqlens" in options
    states = scan(Diagonal(leaves[0]), leaves[1], leaves[2][0] if packed else leaves[2][:, 0], **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad)]


def exact(oracle, maps, bias, start, grad, **options):
    """The same by the definition, in double precision."""
    wide = torch.complex128 if bias.is_complex() else torch.float64
    leaves = [tensor.detach().to(wide).requires_grad_() for tensor in (maps, bias, start)]
    packed = "cu_seqlens" in options
    states = oracle(Diagonal(leaves[0]), leaves[1], leaves[2][0] if packed else leaves[2][:, 0], **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad.to(wide))]


def hold(found, expected, bound):
    for one, other in zip(found, expected, strict=True):
        error = (one.to(other.dtype) - other).abs().max()
        assert error <= bound * other.abs().max().clamp_min(1), f"off by {error:.1e}"
