"""Rules that need no autograd: one step forward, the loss sent back within that step, and a formula for each layer's gradient."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from pararnn_cola.errors import CoverageError
from pararnn_cola.layers.base import Layer, Moment, select
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.buffers import HALF
from pararnn_cola.learners.result import Signals, StepResult
from pararnn_cola.learners.rows import Rows


class ClosedFormLearner(Learner):
    """The step that such rules share; the gradient of the readout is exact in all of them.

    In several layers the loss goes down within the step: `d` of a layer is `dL[t]/dx[t]` through the layers above at time t.
    """

    def _check_coverage(self) -> None:
        super()._check_coverage()
        readout = self.network.readout
        known = {parameter for layer in self.network.recurrent for parameter in layer.parameters()}
        known |= {parameter for name, parameter in readout.named_parameters() if name in readout.gradient_names}
        stray = [name for name, p in self.network.named_parameters() if p.requires_grad and p not in known]
        if stray:
            raise CoverageError(
                f"{type(self).__name__} has a formula for layers and the readout's {' and '.join(readout.gradient_names)}, none for "
                f"{', '.join(stray)}; freeze them, or take a rule that uses autograd: BPTT, TBPTT, RTRL, UORO",
                missing=stray,
            )
        for index, layer in enumerate(self.network.recurrent):
            named = layer.named_parameters(remove_duplicate=False)
            missing = [name for name, p in named if p.requires_grad and name not in layer.gradient_names]
            if missing:
                raise CoverageError(
                    f"layer {index} ({type(layer).__name__}) has no formula for the gradient of {', '.join(missing)}, which {type(self).__name__} "
                    "needs; freeze them, name them in gradient_names and add_gradients, or take a rule that uses autograd: BPTT, TBPTT, RTRL, UORO",
                    layer=index,
                    missing=missing,
                )

    @torch.no_grad()
    def _learn(self, u: Tensor, target: Tensor | None, rows: Rows, signals: bool) -> StepResult:
        layers, moments, states, inputs = self.network.recurrent, [], [], u
        for layer, state in zip(layers, self.states or (), strict=True):
            following, moment = layer.observe(u, state)
            if rows.present is not None:
                following = select(rows.present, following, state, layer.unit_dims)
            moments.append(moment)
            states.append(following)
            u = moment.output
        output = self.network.readout(u)
        if target is None:
            for index, (layer, moment) in enumerate(zip(layers, moments, strict=True)):
                self._pass(index, layer, moment, rows)
            self.states = tuple(states)
            return StepResult(output, None)
        answer = output.float() if output.dtype in HALF else output
        self.loss.check(answer, target)
        losses, errors = self.loss.both(answer, target)
        loss = rows.weighted(losses, 0).mean(-1)
        self._finite(loss, inputs, output if isinstance(rows.live, Tensor) else None)
        error = rows.weighted(errors, 1)
        buffers, scale = self.buffers.open(), 1.0 / self.batch[-1]
        self.network.readout.add_gradients(buffers[-1], error, u, scale)
        gradient = self.network.readout.to_output(error.to(output.dtype), u)
        seen: list[Signals] = []
        for index in reversed(range(len(layers))):
            layer, moment = layers[index], moments[index]
            gradient = self._output_gradient(index, error, gradient)
            instantaneous = moment.slope * gradient
            used = self._contribute(index, layer, moment, gradient, instantaneous, rows, buffers[index], scale)
            if signals and used is not None:
                # Copies: a rule may keep its signals for the next step, and what is given away may be written to.
                seen.append(Signals(instantaneous.clone(), used.clone()))
            if index:
                gradient = layer.signal_to_input(instantaneous, moment)
        if self.buffers.shadows:
            self.buffers.close()
        self.states = tuple(states)
        return StepResult(output, loss, tuple(reversed(seen)) if seen else None)

    @abstractmethod
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
        """Add the layer's gradients to `buffers`, and give the signal that they came from, where there is one."""

    def _output_gradient(self, index: int, error: Tensor, gradient: Tensor) -> Tensor:
        """What layer `index` takes for `dL[t]/dh[t]`: `gradient`, which is it, or something made of the `error` at the output."""
        return gradient

    def _pass(self, index: int, layer: Layer, moment: Moment, rows: Rows) -> None:
        """A step without a loss went by."""
