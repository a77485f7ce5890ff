"""Real-time recurrent learning: the exact influence of every weight on every state, carried forward; the oracle of the other rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_cola.layers.base import rows_like
from pararnn_cola.learners.columns import columns_of, places_of, width
from pararnn_cola.learners.delivery import covered
from pararnn_cola.learners.forms import Form, Group, Shape, check_forms
from pararnn_cola.learners.forward import ForwardLearner, flat, side_by_side
from pararnn_cola.network import Network, States


class RTRL(ForwardLearner):
    """The exact gradient at each step, of stacks of layers too, from derivatives that autograd takes of one step.

    With weights that stand still its gradients are those of `BPTT`. The influence takes `memory(batch)` bytes, and a step passes over it
    `states` times: for small networks, and to check other rules against.

    Options: `memory_limit`, and those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.

    Raises:
        ConfigError: `memory_limit` bytes (4 GiB unless set) do not hold the influence of the batch that comes.

    Source: R. J. Williams, D. Zipser, "A Learning Algorithm for Continually Running Fully Recurrent Neural Networks", Neural Computation 1 (1989).
    """

    def __init__(self, network: Network, *, memory_limit: int = 4 * 2**30, **options: Any) -> None:
        super().__init__(network, **options)
        self.memory_limit = memory_limit
        self.influence: Tensor | None = None

    def memory(self, batch: int) -> int:
        """Bytes of the influence `(batch, states, parameters)`, which a step holds twice."""
        states = flat(self.network.zero_state(1))
        return 2 * batch * states.shape[1] * sum(p.numel() for p in self._hidden().values()) * states.element_size()

    def init(self, *batch: int) -> Self:
        if len(batch) == 1 and isinstance(batch[0], int) and (needed := self.memory(batch[0])) > self.memory_limit:
            raise ConfigError(
                f"the influence of {sum(p.numel() for p in self._hidden().values())} parameters on the states of {batch[0]} samples takes {needed} "
                f"bytes, above memory_limit={self.memory_limit}; take UORO, which keeps a rank-one estimate of it, TBPTT, a smaller batch, or a "
                "higher limit",
                needed=needed,
                limit=self.memory_limit,
            )
        return super().init(*batch)

    def _carried(self, u: Tensor, states: States, hidden: dict[str, nn.Parameter], present: Tensor | None) -> tuple[Tensor, ...]:
        rows, kept = [], None if self.influence is None else self._kept(self.influence, hidden)
        for row in range(self.batch[0]):
            # One row at a time: autograd sums the derivatives by weights over all rows of a batch.
            before, after = self._rerun(u, states, present, slice(row, row + 1))
            units = torch.eye(after.shape[1], dtype=after.dtype, device=after.device).unsqueeze(1)
            pieces = torch.autograd.grad(after, [*before, *hidden.values()], units, is_grads_batched=True, allow_unused=True)
            direct = covered(type(self).__name__, list(hidden), pieces[len(before) :])
            by_states = side_by_side(pieces[: len(before)], before, (len(units),), 1, after.dtype).squeeze(1)
            grown = side_by_side(direct, list(hidden.values()), (len(units),), 0, after.dtype) if hidden else by_states.new_zeros(len(units), 0)
            rows.append(grown if kept is None else torch.addmm(grown, by_states, kept[row]))
        return (torch.stack(rows),)

    def _carry(self, carried: tuple[Tensor, ...]) -> None:
        (self.influence,) = carried

    def _credit(self, by_states: Tensor, carried: tuple[Tensor, ...]) -> Tensor:
        return torch.einsum("bs,bsp->p", by_states, carried[0])

    def _forget(self, rows: Tensor | None) -> None:
        if rows is None:
            self.influence = None
        elif self.influence is not None:
            self.influence = torch.where(rows_like(rows, self.influence, 2), torch.zeros_like(self.influence), self.influence)

    def _memory(self) -> dict[str, Tensor]:
        return {} if self.influence is None else {"influence": self.influence, "columns": places_of(self.network, self.columns)}

    def _check_memory(self, memory: dict[str, Tensor], batch: tuple[int, ...]) -> None:
        influence: tuple[Shape, ...] = ()
        if batch and "columns" in memory:
            states = flat(self.network.zero_state(*batch))
            influence = ((*states.shape, width(self.network, columns_of(self.network, memory["columns"]))),)
        dtype = torch.promote_types(self.buffers.flat[0].parameter.dtype, torch.float32)
        check_forms(memory, [Group({"influence": Form(dtype, influence), "columns": Form(torch.int64, ((None,),))})])

    def _recall(self, memory: dict[str, Tensor]) -> None:
        self._place(memory.get("columns"))
        self.influence = memory.get("influence")

    def _settings(self) -> Iterator[str]:
        yield f"memory_limit={self.memory_limit}"
        yield from super()._settings()
