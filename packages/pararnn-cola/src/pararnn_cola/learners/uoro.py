"""Unbiased online recurrent optimization: the influence of RTRL replaced by a random matrix of rank one whose mean it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pararnn_cola.layers.base import rows_like
from pararnn_cola.learners.columns import columns_of, places_of, width
from pararnn_cola.learners.delivery import covered
from pararnn_cola.learners.forms import Form, Group, check_forms
from pararnn_cola.learners.forward import ForwardLearner, flat, side_by_side
from pararnn_cola.network import Network, States

GROUP = 32
"""Rows that one call of autograd differentiates, each on its own; its cost grows with the square of this."""


class UORO(ForwardLearner):
    """Gradients whose mean over the random signs is that of `RTRL`, at a memory of `batch * (states + parameters)` numbers.

    The influence is estimated as `a b^T`, for each sample on its own. With random signs `n`

        a <- r0 (ds[t]/ds[t-1]) a + r1 n          b <- b / r0 + n^T (ds[t]/dtheta) / r1

    where `r0` and `r1` balance the norms of both factors, which keeps the variance low. Where one of a pair of factors is zero, so is their
    product, and the pair is dropped; the source adds a small constant instead. `seed` fixes the signs, whose generator is in the checkpoint.

    Options: `seed`, and those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.

    Source: C. Tallec, Y. Ollivier, "Unbiased Online Recurrent Optimization", ICLR 2018, arXiv 1702.05043, algorithm 1.
    """

    def __init__(self, network: Network, *, seed: int = 0, **options: Any) -> None:
        super().__init__(network, **options)
        self.seed = seed
        # On the CPU, so that a seed means the same signs on every device.
        self.generator = torch.Generator().manual_seed(seed)
        self.factors: tuple[Tensor, Tensor] | None = None

    def _carried(self, u: Tensor, states: States, hidden: dict[str, nn.Parameter], present: Tensor | None) -> tuple[Tensor, ...]:
        memory = self.generator.get_state()
        try:
            groups = [self._group(u, states, hidden, present, slice(start, start + GROUP)) for start in range(0, self.batch[0], GROUP)]
            following = self.generator.get_state()
        finally:
            # Until the step is known to succeed, it has drawn nothing.
            self.generator.set_state(memory)
        state_factor, weight_factor = (torch.cat(parts) for parts in zip(*groups, strict=True))
        return state_factor, weight_factor, following

    def _group(self, u: Tensor, states: States, hidden: dict[str, nn.Parameter], present: Tensor | None, rows: slice) -> tuple[Tensor, Tensor]:
        before, after = self._rerun(u, states, present, rows)
        signs = torch.randint(0, 2, after.shape, generator=self.generator, device="cpu").to(after.device, after.dtype) * 2 - 1
        direct = self._direct(hidden, after, signs)
        old = (
            (torch.zeros_like(signs), torch.zeros_like(direct))
            if self.factors is None
            else (self.factors[0][rows], self._kept(self.factors[1][rows], hidden))
        )
        pushed = self._pushed(before, after, old[0])
        past, both_past = _balance(old[1], pushed)
        now, both_now = _balance(direct, signs)
        # Zero factors make the balance zero or infinite, and 0 * inf would be NaN.
        state_factor = torch.where(both_past, past * pushed, 0) + torch.where(both_now, now * signs, 0)
        weight_factor = torch.where(both_past, old[1] / past, 0) + torch.where(both_now, direct / now, 0)
        if present is None:
            return state_factor, weight_factor
        stay = ~present[rows].unsqueeze(-1)
        return torch.where(stay, old[0], state_factor), torch.where(stay, old[1], weight_factor)

    def _direct(self, hidden: dict[str, nn.Parameter], after: Tensor, signs: Tensor) -> Tensor:
        """`n^T ds[t]/dtheta` of each row, `(rows, parameters)`."""
        if not hidden:
            return signs.new_zeros(len(signs), 0)
        each = torch.eye(len(signs), dtype=signs.dtype, device=signs.device).unsqueeze(-1) * signs
        pieces = torch.autograd.grad(after, list(hidden.values()), each, is_grads_batched=True, allow_unused=True, retain_graph=True)
        return side_by_side(covered(type(self).__name__, list(hidden), pieces), list(hidden.values()), (len(signs),), 0, signs.dtype)

    @staticmethod
    def _pushed(before: list[Tensor], after: Tensor, factor: Tensor) -> Tensor:
        """`(ds[t]/ds[t-1]) a`: `n^T (ds/ds) a` is linear in `n`, and its derivative by `n` is what is wanted."""
        with torch.enable_grad():
            probe = torch.zeros_like(after).requires_grad_()
            pulled = torch.autograd.grad(after, before, probe, create_graph=True, allow_unused=True)
            start = side_by_side(pulled, before, (), 1, after.dtype)
        (pushed,) = torch.autograd.grad(start, probe, factor)
        return pushed

    def _carry(self, carried: tuple[Tensor, ...]) -> None:
        self.factors = (carried[0], carried[1])
        self.generator.set_state(carried[2])

    def _credit(self, by_states: Tensor, carried: tuple[Tensor, ...]) -> Tensor:
        gradient: Tensor = torch.linalg.vecdot(by_states, carried[0]) @ carried[1]
        return gradient

    def _forget(self, rows: Tensor | None) -> None:
        if rows is None:
            self.factors = None
        elif self.factors is not None:
            first, second = (torch.where(rows_like(rows, factor, 1), torch.zeros_like(factor), factor) for factor in self.factors)
            self.factors = (first, second)

    def _memory(self) -> dict[str, Tensor]:
        named = {"generator": self.generator.get_state()}
        if self.factors is not None:
            named["state_factor"], named["weight_factor"] = self.factors
            named["columns"] = places_of(self.network, self.columns)
        return named

    def _check_memory(self, memory: dict[str, Tensor], batch: tuple[int, ...]) -> None:
        state, weight = (Form(torch.promote_types(self.buffers.flat[0].parameter.dtype, torch.float32), ()),) * 2
        if batch and "columns" in memory:
            states, total = flat(self.network.zero_state(*batch)), width(self.network, columns_of(self.network, memory["columns"]))
            state, weight = (Form(states.dtype, (shape,)) for shape in (tuple(states.shape), (batch[0], total)))
        factors = {"state_factor": state, "weight_factor": weight, "columns": Form(torch.int64, ((None,),))}
        generator = Form(torch.uint8, (tuple(self.generator.get_state().shape),))
        check_forms(memory, [Group(factors), Group({"generator": generator}, needed=True)])

    def _recall(self, memory: dict[str, Tensor]) -> None:
        self._place(memory.get("columns"))
        self.generator.set_state(memory["generator"].cpu())
        self.factors = (memory["state_factor"], memory["weight_factor"]) if "state_factor" in memory else None

    def _settings(self) -> Iterator[str]:
        yield f"seed={self.seed}"
        yield from super()._settings()


def _balance(weight_factor: Tensor, state_factor: Tensor) -> tuple[Tensor, Tensor]:
    """What to multiply the state factor by, and divide the other by, so that both have one norm; and where neither is zero. Both `(rows, 1)`."""
    by_weights, by_states = weight_factor.norm(dim=-1, keepdim=True), state_factor.norm(dim=-1, keepdim=True)
    return (by_weights / by_states).sqrt(), (by_weights > 0) & (by_states > 0)
