"""Who takes part in `gpu_scan.py`: our kernels by force, ours as it chooses, and the peers that can be imported, each in both layouts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from pararnn import Diagonal, scan
from pararnn.scans import triton_diagonal
from pararnn.scans.launches import Launch, in_chain, in_tiles, launch_for, streaming, walking
from pararnn.scans.triton_memory import processors
from pararnn.structures.block_diagonal import BlockDiagonal

Run = Callable[[], object]
# States from maps and terms, all in the same layout.
Function = Callable[[Tensor, Tensor], Tensor]
Kernel = Callable[[bool], Launch]
Shape = tuple[int, int, int]
BTD, BDT = "(B, T, D)", "(B, D, T)"
# Of each a module and what is called in it; its own layout is `(B, D, T)`.
PEERS = {
    "accelerated-scan (Triton)": ("accelerated_scan.scalar", "scan"),
    "accelerated-scan (CUDA)": ("accelerated_scan.warp", "scan"),
    "fpscan": ("fpscan.ops", "pscan"),
    "philtorch": ("philtorch.lpv", "linear_recurrence"),
}
OURS, PRODUCT = "ours", "maps * terms"
# Channels whose states and gradients are checked.
COMPARED = 4


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A scan of maps and terms in `layout`, which gives states in that layout; by one of our kernels, where `launch` says which."""

    name: str
    layout: str
    function: Function
    launch: Kernel | None = None
    scans: bool = True


def contestants(length: int, *, sweep: bool, peers: dict[str, Function]) -> list[Contestant]:
    """Ours and the peers, for sequences of `length` steps."""
    kernels = [Contestant(name=name, layout=BTD, function=ours, launch=launch) for name, launch in launches(length, sweep=sweep).items()]
    product = Contestant(name=PRODUCT, layout=BTD, function=torch.mul, scans=False)
    # Ours reads the other layout by its strides.
    along_time = Contestant(name=OURS, layout=BDT, function=lambda maps, terms: ours(maps.mT, terms.mT).mT)
    theirs = [
        Contestant(name=name, layout=layout, function=function if layout == BDT else partial(turned, function))
        for name, function in peers.items()
        for layout in (BDT, BTD)
    ]
    return [*kernels, product, along_time, *theirs]


def turned(function: Function, maps: Tensor, terms: Tensor) -> Tensor:
    """What a peer needs for tensors `(B, T, D)`: contiguous copies `(B, D, T)`; results are turned back by `runs_of`."""
    return function(maps.mT.contiguous(), terms.mT.contiguous()).mT


def runs_of(contestant: Contestant, tensors: list[Tensor]) -> dict[str, Run]:
    """Forward without gradients, and forward and backward, from maps, terms and a gradient of the states in the contestant's layout.

    What comes back is contiguous in that layout, gradients too: it is copied where the contestant leaves it otherwise.
    """
    maps, terms, grad = tensors

    def forward() -> Tensor:
        with forced(contestant.launch), torch.no_grad():
            return contestant.function(maps, terms).contiguous()

    def both() -> list[Tensor]:
        with forced(contestant.launch):
            states = contestant.function(maps, terms).contiguous()
            return [found.contiguous() for found in torch.autograd.grad(states, (maps, terms), grad)]

    return {"forward": forward, "both": both} if contestant.scans else {"forward": forward}


def inputs(shape: Shape) -> dict[str, list[Tensor]]:
    """Maps, terms and a gradient of the states, in each layout; the same numbers."""
    torch.manual_seed(0)
    tensors = [0.9 + 0.1 * torch.rand(shape, device="cuda"), torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")]
    layouts = {BTD: tensors, BDT: [tensor.mT.contiguous() for tensor in tensors]}
    for maps, terms, _ in layouts.values():
        maps.requires_grad_()
        terms.requires_grad_()
    return layouts


def truth(tensors: list[Tensor]) -> list[Tensor]:
    """States and both gradients of the first channels in double precision, from maps, terms and gradient `(B, T, D)`."""
    maps, terms, grad = (compared(tensor, BTD) for tensor in tensors)
    maps.requires_grad_()
    terms.requires_grad_()
    states = scan(Diagonal(maps), terms, backend="torch")
    return [states.detach(), *torch.autograd.grad(states, (maps, terms), grad)]


def compared(tensor: Tensor, layout: str) -> Tensor:
    return (tensor if layout == BTD else tensor.mT)[:, :, :COMPARED].detach().double()


def errors_of(contestant: Contestant, tensors: list[Tensor], expected: list[Tensor]) -> dict[str, float]:
    """Differences to the truth, relative to its largest number: of states, and of the worse of two gradients."""
    runs = runs_of(contestant, tensors)
    found = [compared(tensor, contestant.layout) for tensor in (runs["forward"](), *runs["both"]())]
    of_states, *of_gradients = [((one - true).abs().max() / true.abs().max()).item() for one, true in zip(found, expected, strict=True)]
    return {"error": of_states, "gradient_error": max(of_gradients)}


def ours(maps: Tensor, terms: Tensor) -> Tensor:
    return scan(Diagonal(maps), terms, backend="triton")


@contextmanager
def forced(launch: Kernel | None) -> Iterator[None]:
    """Every scan in the block uses the launch of this kernel, for states or for costates."""
    chosen = triton_diagonal.launch_for
    if launch is not None:
        triton_diagonal.launch_for = lambda *_, costate, **__: launch(costate)
    try:
        yield
    finally:
        triton_diagonal.launch_for = chosen


def launches(length: int, *, sweep: bool) -> dict[str, Kernel]:
    kernels = {
        "stream": lambda costate: streaming(itemsize=4, costate=costate),
        "walk": always(walking(itemsize=4)),
        "chain": lambda costate: in_chain(length, itemsize=4, costate=costate),
        "tiles": always(in_tiles(itemsize=4)),
    }
    return kernels | (sweep_of() if sweep else {})


def always(launch: Launch) -> Kernel:
    return lambda _: launch


def sweep_of() -> dict[str, Kernel]:
    """Launches worth trying, by what tells them apart."""
    # Rows of 64 to 256 bytes, and tiles of 16 to 64 steps.
    sizes = [(32, 4, 8, 3), (32, 4, 8, 4), (32, 4, 4, 4), (32, 4, 16, 3), (16, 8, 4, 4), (64, 2, 8, 4)]
    streams = [
        Launch(variant="stream", block_time=groups * height, block_state=lanes, groups=groups, stages=stages)
        for lanes, groups, height, stages in sizes
    ]
    walks = [Launch(variant="walk", block_time=time) for time in (8, 16)]
    caps = [(32, 96), (32, 112), (32, 128), (64, 128), (64, 168), (64, 208)]
    tiles = [Launch(variant="tiles", block_time=time, registers=registers) for time, registers in caps]
    # Warps, steps of each, tiles of a link, and registers.
    links = [(4, 64, 16, 168), (4, 64, 32, 168), (4, 32, 16, 96), (4, 32, 32, 128), (8, 32, 16, 96), (8, 64, 16, 168)]
    chains = [
        Launch(variant="chain", block_time=warps * height, groups=warps, group=link, registers=registers, warps=warps)
        for warps, height, link, registers in links
    ]
    return {" ".join(f"{key}={value}" for key, value in asdict(launch).items()): always(launch) for launch in (*streams, *walks, *chains, *tiles)}


def chosen(shape: Shape) -> str:
    """Which kernel is launched where nobody says which."""
    rows, length, size = shape
    return launch_for(rows, length, rows * length, size, itemsize=4, processors=processors(torch.device("cuda"))).variant


def imported(without: Collection[str]) -> tuple[dict[str, Function], dict[str, str]]:
    """The peers that can be imported, and why others cannot."""
    found: dict[str, Function] = {}
    missing: dict[str, str] = {}
    for name, (module, attribute) in PEERS.items():
        if name in without:
            missing[name] = "left out by --without"
            continue
        try:
            function = getattr(importlib.import_module(module), attribute)
        except Exception as failure:
            missing[name] = first_line(failure)
            continue
        found[name] = partial(flattened, function) if name == "philtorch" else function
    return found, missing


def flattened(function: Callable[[Tensor, Tensor, Tensor], Tensor], maps: Tensor, terms: Tensor) -> Tensor:
    """By a function of `(rows, time)` that takes initial states too."""
    rows = terms.flatten(0, 1)
    return function(maps.flatten(0, 1), rows.new_zeros(rows.shape[0]), rows).view_as(terms)


def first_line(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"


def blocks(shape: Shape) -> dict[str, Run]:
    """Blocks of two slots, of `D` channels each."""
    rows, length, channels = shape
    torch.manual_seed(0)
    maps = (0.5 * torch.randn(rows, length, 2, 2, channels, device="cuda")).requires_grad_()
    terms = torch.randn(rows, length, 2 * channels, device="cuda", requires_grad=True)
    grad = torch.randn_like(terms)

    def forward() -> Tensor:
        with torch.no_grad():
            return scan(BlockDiagonal(maps), terms, backend="triton")

    return {"forward": forward, "both": lambda: torch.autograd.grad(scan(BlockDiagonal(maps), terms, backend="triton"), (maps, terms), grad)}
