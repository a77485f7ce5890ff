"""Tensors that the caller declared, which a field holds by itself, so that no alias can stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def unheard(tensors: Sequence[Tensor]) -> Iterator[None]:
    """A context in which derivatives by `tensors` run none of their hooks, which are for whole gradients and not for their parts."""
    hooks = [(registered, dict(registered)) for tensor in tensors if (registered := tensor._backward_hooks)]
    retained = [(tensor, tensor.grad) for tensor in tensors if tensor.retains_grad]
    for registered, _ in hooks:
        registered.clear()
    try:
        yield
    finally:
        for registered, held in hooks:
            registered.update(held)
        for tensor, grad in retained:
            tensor.grad = grad


def own_shares(tensors: Sequence[Tensor], totals: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Derivatives by each of `tensors` with all others fixed, from `totals`, in which one counts all that was computed from it.

    Autograd hands the derivative by a tensor on to those from which it was computed, so that they would get it twice.
    """
    shares = list(totals)
    earlier = [behind(tensor, tensors) for tensor in tensors]
    # What was computed from others depends on more of them than they do, so it comes before them.
    for k in sorted(range(len(tensors)), key=lambda k: -len(earlier[k])):
        share = shares[k]
        if share is None or not earlier[k]:
            continue
        passed = torch.autograd.grad(tensors[k], [tensors[j] for j in earlier[k]], share, retain_graph=True, allow_unused=True)
        for j, part in zip(earlier[k], passed, strict=True):
            total = shares[j]
            if part is not None:
                shares[j] = -part if total is None else total - part
    return shares


def behind(tensor: Tensor, tensors: Sequence[Tensor]) -> list[int]:
    """Which of `tensors` this one was computed from."""
    nodes: set[Any] = set()
    leaves: set[int] = set()
    pending = [tensor.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        leaves.add(id(getattr(node, "variable", None)))
        pending += [following for following, _ in node.next_functions]
    return [
        k for k, other in enumerate(tensors) if other is not tensor and (id(other) in leaves if other.grad_fn is None else other.grad_fn in nodes)
    ]
