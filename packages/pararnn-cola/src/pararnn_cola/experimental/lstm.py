"""LSTM under the rules in closed form: a pilot. No theory covers it, COLA's source included, which calls its own trial empirical.

    i, f, o = sigmoid(.), g = tanh(.)   of   W h[t-1] + U u[t] + b, four rows a unit
    c[t] = f c[t-1] + i g,    h[t] = o tanh(c[t])

The cell state `c` takes the place of the pre-activation: signals are `dL/dc[t]`, the slope is `o (1 - tanh(c)^2)`, and the forget gate is the leak.
From a signal on `c` the gradients of the gates i, f, g follow exactly. What is approximated:

- The output gate acts past `c`. Its gradient comes from `dL/dh` within the step; what later steps would add to that is lost.
- So `signal_to_previous` holds the paths through i, f and g only, and the recursion of exact signals is not closed by it.
- Backwards from t+1, a signal leaks through `f[t+1]`; a rule at time t has `f[t]` in its place.
- `near_critical` rescales all four blocks of `weight_hh` by one gain, which is a choice, not a derivation.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from pararnn_cola.layers.base import Moment, State
from pararnn_cola.layers.dense import DenseLayer


class LSTMLayer(DenseLayer):
    """`state_size` cells, of state `(h, c)`; weights have four rows a unit in torch's order i, f, g, o."""

    eligible_names = ()

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(input_size, state_size, gates=4, generator=generator, dtype=dtype, device=device)

    @classmethod
    def from_torch(cls, source: nn.LSTMCell) -> Self:
        """The layer with the weights of `source`, whose two biases are added up."""
        mine = cls(source.input_size, source.hidden_size, dtype=source.weight_ih.dtype, device=source.weight_ih.device)
        with torch.no_grad():
            mine.weight_ih.copy_(source.weight_ih)
            mine.weight_hh.copy_(source.weight_hh)
            if source.bias:
                mine.bias.copy_(source.bias_ih + source.bias_hh)
        return mine

    def zero_state(self, *batch: int) -> State:
        return (*super().zero_state(*batch), *super().zero_state(*batch))

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        following, c, _ = self._advance(u, state)
        return following, c

    def observe(self, u: Tensor, state: State) -> tuple[State, Moment]:
        (h, c), _, gates = self._advance(u, state)
        _, forget, _, out, squashed = gates
        # All that formulas need later; c[t-1] among it, which the forget gate multiplies.
        return (h, c), Moment(u, state[0], h, out * (1 - squashed * squashed), forget, (*gates, state[1]))

    def _advance(self, u: Tensor, state: State) -> tuple[State, Tensor, tuple[Tensor, ...]]:
        previous, c = state
        enter, forget, candidate, out = self.current(u, previous).chunk(4, -1)
        enter, forget, candidate, out = enter.sigmoid(), forget.sigmoid(), candidate.tanh(), out.sigmoid()
        c = forget * c + enter * candidate
        squashed = c.tanh()
        h = out * squashed
        return (h, c), c, (enter, forget, candidate, out, squashed)

    def signal_to_input(self, signal: Tensor, moment: Moment) -> Tensor:
        """`dL/du` from `signal = slope * dL/dh`, the output gate included, except in cells so saturated that their slope is zero."""
        slope = moment.slope
        output_gradient = torch.where(slope > 0, signal / slope, torch.zeros((), dtype=signal.dtype, device=signal.device))
        return self._at_gates(signal, output_gradient, moment) @ self.weight_ih

    def signal_to_previous(self, signal: Tensor, moment: Moment) -> Tensor:
        """`dL/dh[t-1]` through the gates i, f and g."""
        return self._at_gates(signal, torch.zeros_like(signal), moment) @ self.weight_hh

    def add_gradients(self, into: dict[str, Tensor], signal: Tensor, output_gradient: Tensor, moment: Moment, scale: float) -> None:
        super().add_gradients(into, self._at_gates(signal, output_gradient, moment), output_gradient, moment, scale)

    @staticmethod
    def _at_gates(signal: Tensor, output_gradient: Tensor, moment: Moment) -> Tensor:
        """Gradients by what goes into the gates, `(*lead, batch, 4 * state)`."""
        enter, forget, candidate, out, squashed, before = moment.extra
        parts = (
            signal * candidate * enter * (1 - enter),
            signal * before * forget * (1 - forget),
            signal * enter * (1 - candidate * candidate),
            output_gradient * squashed * out * (1 - out),
        )
        return torch.cat(parts, -1)
