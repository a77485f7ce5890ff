"""Who takes part in the benchmarks of streaming: rules of pararnn-cola, and loops that are written by hand.

Each is a function of inputs `(time, batch, input)` and targets `(time, batch, output)` that goes through them step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import pararnn_cola
from pararnn_cola import Learner, Network

Run = Callable[[Tensor, Tensor], object]
FORWARD, BY_HAND = "forward loop, no_grad", "autograd loop by hand"
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "TBPTT1": ("TBPTT1", {}),
    "COLA": ("COLA", {}),
    "SnAp1": ("SnAp1", {}),
    "EProp": ("EProp", {}),
    "TBPTT(10)": ("TBPTT", {"k1": 10}),
    "BPTT": ("BPTT", {}),
}
INPUT, OUTPUT = 3, 1
RATE = 1e-4


def learner_of(name: str, state: int, *, update: str, device: str = "cpu") -> Learner:
    """A rule on a tanh network of `state` units, with SGD."""
    rule, options = RULES[name]
    network = Network.rnn(INPUT, state, OUTPUT, seed=0, device=device)
    # BPTT cannot move weights at every step; it moves them at the end of each run.
    return getattr(pararnn_cola, rule)(network, lr=RATE, update="accumulate" if name == "BPTT" else update, **options)


def rule(name: str, state: int, *, update: str, device: str = "cpu") -> Run:
    """`learner.step` for each step; what is owed at the end is sent back, and moves the weights where they move at all."""
    learner = learner_of(name, state, update=update, device=device)

    def run(inputs: Tensor, targets: Tensor) -> None:
        for u, y in zip(inputs.unbind(0), targets.unbind(0), strict=True):
            learner.step(u, y)
        if update == "step":
            learner.apply()
        else:
            learner.flush()

    return run


def forward(state: int, batch: int, *, device: str = "cpu") -> Run:
    """What any rule has to do at least: two products and a tanh, one product for the answer."""
    network = Network.rnn(INPUT, state, OUTPUT, seed=0, device=device)
    recurrent, feeding, bias = (getattr(network.recurrent[0], name).detach() for name in ("weight_hh", "weight_ih", "bias"))
    weight, offset = network.readout.weight.detach(), network.readout.bias.detach()
    h = torch.zeros(batch, state, device=device)

    @torch.no_grad()
    def run(inputs: Tensor, targets: Tensor) -> None:
        nonlocal h
        for u in inputs.unbind(0):
            h = torch.tanh(torch.addmm(torch.addmm(bias, u, feeding.T), h, recurrent.T))
            torch.addmm(offset, h, weight.T)

    return run


def by_hand(state: int, batch: int, *, update: str, device: str = "cpu") -> Run:
    """Truncation after one step as one writes it with torch: RNNCell, detach, backward, optimizer."""
    torch.manual_seed(0)
    cell, readout = nn.RNNCell(INPUT, state, device=device), nn.Linear(state, OUTPUT, device=device)
    optimizer = torch.optim.SGD([*cell.parameters(), *readout.parameters()], lr=RATE)
    h = torch.zeros(batch, state, device=device)

    def run(inputs: Tensor, targets: Tensor) -> None:
        nonlocal h
        for u, y in zip(inputs.unbind(0), targets.unbind(0), strict=True):
            h = cell(u, h.detach())
            loss = nn.functional.mse_loss(readout(h), y)
            loss.backward()
            if update == "step":
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        h = h.detach()

    return run


def data(steps: int, batch: int, *, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Random inputs and targets, the same for all."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(steps, batch, size, generator=generator) for size in (INPUT, OUTPUT))
    return inputs.to(device), targets.to(device)
