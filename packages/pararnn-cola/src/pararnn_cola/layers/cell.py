"""Any cell of the core's protocol as a layer that learns as data streams by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pararnn.cell import Cell, check_cell
from pararnn.errors import ParaRNNError, ShapeError, sentence
from pararnn.solver import drive as drives
from pararnn_cola.errors import CoverageError
from pararnn_cola.layers.base import Layer, State


class CellLayer(Layer):
    """`cell`, one step at a time: `ParaCfC` and any other cell that `ParaRNN` takes.

    The state is the cell's own where its `readout` gives that back, else the pair of output and cell state. There is no formula for its
    gradients, so rules that use autograd train it (BPTT, TBPTT, RTRL, UORO), and rules in closed form refuse it. Stack cells of the same kind by
    their own `layer_above` where they need an input of the lowest layer; here each layer sees the output below it alone.

    Raises:
        CellError: `cell` does not follow the protocol.
    """

    recurrent_name = ""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        check_cell(cell)
        self.cell = cell

    @property
    def _cell(self) -> Cell:
        # A module's attributes have no types of their own; `check_cell` has seen to it.
        return self.cell  # type: ignore[return-value]

    def zero_state(self, *batch: int) -> State:
        if len(batch) != 1:
            raise ShapeError(
                f"a cell of the core takes samples (batch,), got {batch}; ensembles need layers with a parameter for each run", batch=batch
            )
        state = self._cell.initial_state(batch[0])
        with torch.no_grad():
            output = self._shown(state, next((p.dtype for p in self.parameters()), state.dtype))
        return (state,) if output is state else (output, state)

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        """The next state, and in place of a pre-activation, which a cell need not have, the cell's own state."""
        try:
            (drive,) = drives.unbind(self._cell.drive(u.unsqueeze(1)), dim=1)
        except RuntimeError as error:
            if isinstance(error, ParaRNNError):
                raise
            raise ShapeError(
                f"{type(self.cell).__name__} cannot take inputs {tuple(u.shape)} ({sentence(error)}); give the features that it was made for",
                shape=tuple(u.shape),
            ) from error
        following = self._cell.step(state[-1], drive)
        return ((following,) if len(state) == 1 else (self._shown(following, u.dtype), following)), following

    def _shown(self, state: Tensor, dtype: torch.dtype) -> Tensor:
        # Cells in half precision carry their state in float32; what is above them expects what they were given.
        return self._cell.readout(state).to(dtype)

    def operator_norm(self) -> Tensor:
        raise CoverageError(f"{type(self.cell).__name__} has no single recurrent matrix whose norm could be taken; near-criticality needs one")
