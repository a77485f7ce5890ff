"""Rules that carry forward how each weight has acted on its own unit, and pay it once there is a loss.

A trace holds `dx_i[t]/dtheta` for the parameters theta of unit i, past steps included as far as the rule follows them:

    E[t] = carried[t] E[t-1] + dx_i/dtheta within step t,      gradient = sum over the batch of d_i[t] E_i[t]

Steps without a loss advance traces too, so a loss that comes late still reaches what caused it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.errors import CoverageError
from pararnn_cola.layers.base import Layer, Moment
from pararnn_cola.learners.closed_form import ClosedFormLearner
from pararnn_cola.learners.forms import Form, Group, check_forms
from pararnn_cola.learners.rows import Rows
from pararnn_cola.network import Network


class EligibilityLearner(ClosedFormLearner):
    """The traces, and the gradient that they give; a subclass says what of a trace is carried on.

    Traces are `(*lead, state, batch, columns)` in float32 at least, a column for each unit, each input and the bias; `state` is 1 where all units
    carry the same share. They are updated in place. Such rules have no signal that stands for `dL/dx`, so `step(signals=True)` gives none.
    """

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.traces: list[Tensor | None] = [None] * len(network.recurrent)

    def _check_coverage(self) -> None:
        super()._check_coverage()
        for index, layer in enumerate(self.network.recurrent):
            named = layer.named_parameters(remove_duplicate=False)
            missing = [name for name, p in named if p.requires_grad and name not in layer.eligible_names]
            if missing or not layer.eligible_names:
                rule, kind = type(self).__name__, type(layer).__name__
                parts = ", ".join(missing) or "what its units see"
                raise CoverageError(
                    f"{rule} follows how a weight acts on its own unit, which layer {index} ({kind}) does not tell of {parts}; rules that can train "
                    "it: COLA, TBPTT1, and by autograd BPTT, TBPTT, RTRL, UORO. A layer of your own tells by eligible_names, eligible and own_path",
                    layer=index,
                    missing=missing,
                )

    @abstractmethod
    def _carried(self, index: int, layer: Layer, moment: Moment, rows: Rows) -> Tensor | float:
        """`dx_i[t]/dx_i[t-1]` as the rule sees it, `(*lead, batch, state)` or one number for all; called once a step."""

    def _advance(self, index: int, layer: Layer, moment: Moment, seen: tuple[Tensor, ...], rows: Rows) -> Tensor:
        """The trace of this step, in which `layer` has `seen` that."""
        wide = torch.promote_types(moment.slope.dtype, torch.float32)
        fresh = torch.cat([part.to(wide) for part in seen], -1).unsqueeze(-3)
        carried = self._carried(index, layer, moment, rows)
        if isinstance(carried, float):
            if carried == 0.0:
                return fresh
            carried = fresh.new_full((1, 1), carried)
        else:
            carried = carried.to(wide).mT.unsqueeze(-1)
        if rows.present is not None:
            there = rows.present.unsqueeze(-1).unsqueeze(-3)
            fresh = torch.where(there, fresh, torch.zeros((), dtype=wide, device=fresh.device))
            carried = torch.where(there, carried, torch.ones((), dtype=wide, device=fresh.device))
        trace = self.traces[index]
        if trace is None:
            units = carried.shape[-3] if carried.dim() > 2 else 1
            trace = self.traces[index] = fresh.new_zeros(*fresh.shape[:-3], units, *fresh.shape[-2:])
        # In one pass and without another tensor of this size: traces are the largest thing that such a rule owns.
        torch.addcmul(fresh, carried, trace, out=trace)
        return trace

    def _contribute(
        self,
        index: int,
        layer: Layer,
        moment: Moment,
        output_gradient: Tensor,
        instantaneous: Tensor,
        rows: Rows,
        buffers: dict[str, Tensor],
        scale: float,
    ) -> Tensor | None:
        seen = layer.eligible(moment)
        trace = self._advance(index, layer, moment, seen, rows)
        signal = instantaneous.to(trace.dtype).mT
        if trace.shape[-3] == 1:
            gradient = signal @ trace.squeeze(-3)
        else:
            gradient = (signal.unsqueeze(-2) @ trace).squeeze(-2)
        columns = gradient.split([part.shape[-1] for part in seen], -1)
        for name, part in zip(layer.eligible_names, columns, strict=True):
            if name in buffers:
                buffers[name].add_(part.reshape(buffers[name].shape), alpha=scale)
        return None

    def _pass(self, index: int, layer: Layer, moment: Moment, rows: Rows) -> None:
        self._advance(index, layer, moment, layer.eligible(moment), rows)

    def _forget(self, rows: Tensor | None) -> None:
        if rows is None:
            self.traces = [None] * len(self.traces)
            return
        for trace in self.traces:
            if trace is not None:
                trace.masked_fill_(rows.unsqueeze(-1).unsqueeze(-3), 0.0)

    def _memory(self) -> dict[str, Tensor]:
        return {f"{index}.trace": trace for index, trace in enumerate(self.traces) if trace is not None}

    def _check_memory(self, memory: dict[str, Tensor], batch: tuple[int, ...]) -> None:
        check_forms(memory, [group for index, layer in enumerate(self.network.recurrent) for group in self._groups(index, layer, batch)])

    def _groups(self, index: int, layer: Layer, batch: tuple[int, ...]) -> list[Group]:
        """What the rule keeps of layer `index` for samples of shape `batch`."""
        *lead, samples = batch or (*self.network.lead, 1)
        h = layer.zero_state(*lead, samples)[0]
        columns = sum(layer.get_parameter(name)[(0,) * (len(lead) + 1)].numel() for name in layer.eligible_names)
        shapes = tuple((*lead, units, samples, columns) for units in (1, h.shape[-1]))
        return [Group({f"{index}.trace": Form(torch.promote_types(h.dtype, torch.float32), shapes)})]

    def _recall(self, memory: dict[str, Tensor]) -> None:
        self.traces = [memory.get(f"{index}.trace") for index in range(len(self.traces))]
