"""`ParaRNN`: recurrent cells as a layer over whole sequences, stacked, solved in parallel over time, decoded one step at a time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from pararnn.cell import check_cell
from pararnn.errors import CellError, ConfigError, DTypeError, ShapeError
from pararnn.scans.api import HALF
from pararnn.solver.api import cell_problem, solve_cell, step_cell, walk_problem
from pararnn.solver.config import NewtonConfig
from pararnn.solver.graphs import Form, choose
from pararnn.solver.result import SolveResult

if TYPE_CHECKING:
    from pararnn.decoding import Decoder, Graph

States: TypeAlias = tuple[Tensor, ...]
Solver: TypeAlias = Literal["auto", "newton", "sequential"]


class ParaRNN(nn.Module):
    """Cells over sequences `(batch, time, input)`.

    Args:
        cell_or_cells: one cell, or the cells of all layers from the bottom up.
        num_layers: how often one cell is stacked; layers above the first are made by the cell's `layer_above`, or as fresh copies of it where
            its output has the size of its input. The layers made here share no weights.
        config: how trajectories are solved in parallel.
        solver: `"auto"` lets the planner choose between a parallel solve and the walk, in training and evaluation alike; `"newton"` insists on
            the parallel solve, `"sequential"` on the walk, differentiated by autograd step by step.
        return_hidden: whether `forward` also returns the final state of every layer.
        batch_first: inputs and outputs are `(batch, time, ...)`, else `(time, batch, ...)`. States are `(batch, state)` either way.
        dropout: probability of dropping an output of any layer but the last, while training.

    Raises:
        CellError: a cell does not follow the protocol, or cannot be stacked.
        ConfigError: an option that cannot work.
    """

    def __init__(
        self,
        cell_or_cells: nn.Module | Sequence[nn.Module],
        *,
        num_layers: int = 1,
        config: NewtonConfig | None = None,
        solver: Solver = "auto",
        return_hidden: bool = False,
        batch_first: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if solver not in ("auto", "newton", "sequential"):
            raise ConfigError(f"solver must be 'auto', 'newton' or 'sequential', got {solver!r}")
        if not 0 <= dropout <= 1:
            raise ConfigError(f"dropout must lie in [0, 1], got {dropout}")
        if config is not None and not isinstance(config, NewtonConfig):
            raise ConfigError(f"config must be a NewtonConfig, got {type(config).__name__}; write config=NewtonConfig(...)")
        self.layers = nn.ModuleList(_stack(cell_or_cells, num_layers))
        self.config = NewtonConfig() if config is None else config
        self.solver = solver
        self.return_hidden = return_hidden
        self.batch_first = batch_first
        self.dropout = nn.Dropout(dropout)

    def extra_repr(self) -> str:
        """The options of this layer."""
        return f"solver={self.solver!r}, return_hidden={self.return_hidden}, batch_first={self.batch_first}"

    def forward(self, x: Tensor, h0: Tensor | Sequence[Tensor] | None = None, cu_seqlens: Tensor | None = None) -> Any:
        """Outputs `(batch, time, output)`, and with `return_hidden` the final state `(batch, state)` of every layer.

        Args:
            x: inputs `(batch, time, input)`; packed sequences lie in one row `(1, time, input)`.
            h0: initial state of every layer, `(batch, state)` each (a tensor will do for one layer), zero if left out. For packed
                sequences `(segments, state)`.
            cu_seqlens: `(segments + 1,)` cumulative lengths of packed sequences.

        Raises:
            ShapeError, DTypeError, InputError: inputs that do not fit; the message says how.
        """
        output, results = self.solve(x, h0, cu_seqlens)
        return (output, tuple(result.final for result in results)) if self.return_hidden else output

    def solve(
        self, x: Tensor, h0: Tensor | Sequence[Tensor] | None = None, cu_seqlens: Tensor | None = None, *, guesses: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, tuple[SolveResult, ...]]:
        """Outputs as `forward` gives them, and the result of each layer's solve: states, status, plan, iterations.

        `guesses` are states `(batch, time, state)` of each layer to start from, such as those of the last training step on the same data; they change
        the cost, never the answer.
        """
        if not isinstance(x, Tensor) or x.ndim != 3:
            raise ShapeError(f"x must be a tensor (batch, time, input), got {tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}")
        # Attributes of modules are slow to look up, and small solves are bound by that.
        layers = self.layers
        if guesses is not None and len(guesses) != len(layers):
            raise ShapeError(f"guesses holds {len(guesses)} tensors for {len(layers)} layers")
        x = x if self.batch_first else x.transpose(0, 1)
        starts = [None] * len(layers) if h0 is None else self._initial(h0)
        config = self.config
        if self.solver == "newton" and config.interval == "auto":
            config = _in_parallel(config) if is_compiling() else _same_in_parallel(config)
        results = []
        output = x
        for depth, cell in enumerate(layers):
            if depth:
                output = self._input_above(layers[depth - 1], self.dropout(output), x)
            start, guess = starts[depth], guesses[depth] if guesses else None
            if self.solver == "sequential":
                result = walk_problem(cell_problem(cell, output, config, h0=start, cu_seqlens=cu_seqlens, guess=guess))
            else:
                choice = partial(self._kernel, depth) if is_compiling() else None
                result = solve_cell(cell, output, config, h0=start, cu_seqlens=cu_seqlens, guess=guess, choose=choice)
            results.append(result)
            output = cell.readout(result.states)  # type: ignore[operator]
            # States of half precision modules are carried in float32; outputs are what the next layer and the user expect.
            output = output.to(x.dtype) if x.dtype in HALF else output
        return (output if self.batch_first else output.transpose(0, 1)), tuple(results)

    def step(self, x: Tensor, states: Tensor | Sequence[Tensor] | None = None) -> tuple[Tensor, States]:
        """One step of decoding: output `(batch, output)` and new states, from a sample `x` `(batch, input)` and the states before it.

        Feeding the samples of a sequence one by one gives the outputs of `forward` on the whole. On a GPU, without gradients, kernels make the step
        where they can, and wait for nothing: NaN in the inputs is no error then.
        """
        if not isinstance(x, Tensor) or x.ndim != 2:
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"step takes one sample a sequence, a tensor x of shape (batch, input), got {found}; use forward for whole sequences")
        layers, dtype = self.layers, x.dtype
        starts = [None] * len(layers) if states is None else self._initial(states)
        new = []
        output = sample = x.unsqueeze(1)
        for depth, cell in enumerate(layers):
            if depth:
                output = self._input_above(layers[depth - 1], output, sample)
            if self.solver == "sequential":
                result = walk_problem(cell_problem(cell, output, self.config, h0=starts[depth]))
            else:
                result = step_cell(cell, output, self.config, h0=starts[depth])
            new.append(result.final)
            output = cell.readout(result.states)  # type: ignore[operator]
            output = output.to(dtype) if dtype in HALF else output
        return output.select(1, 0), tuple(new)

    def decoder(self, batch: int, *, graph: Graph = "auto") -> Decoder:
        """A decoder of `batch` rows from their initial states: `step` for many samples, without gradients, in memory that stays where it is.

        Args:
            graph: whether a step is recorded in a CUDA graph and replayed: `"auto"` where the states are on a CUDA device and it can be, `"always"`,
                or `"never"`.

        Raises:
            ConfigError: `batch` is less than 1, or a graph is insisted on where there is none.
        """
        # Only who decodes waits for the compiler behind it to load.
        from pararnn.decoding import Decoder

        return Decoder(self, batch, graph=graph)

    def initial_state(self, batch: int) -> States:
        """The states before the first sample, `(batch, state)` for each layer."""
        return tuple(cell.initial_state(batch) for cell in self.layers)  # type: ignore[operator]

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _kernel(self, depth: int, form: Form) -> Any:
        """The kernel that serves layer `depth`; a method, because a compiler knows which module it traces, but hands on no modules."""
        return tuple(choose(self.layers[depth], form))

    def _initial(self, states: Tensor | Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not isinstance(states, Tensor | Sequence):
            raise DTypeError(f"states are a tensor (batch, state) for each layer, got {type(states).__name__}")
        given = (states,) if isinstance(states, Tensor) else tuple(states)
        if len(given) != len(self.layers):
            what = f"one tensor {tuple(states.shape)}" if isinstance(states, Tensor) else f"{len(given)} tensors"
            raise ShapeError(f"{what} as the states of {len(self.layers)} layers; pass a list with one (batch, state) tensor for each layer")
        return given

    @staticmethod
    def _input_above(below: nn.Module, output: Tensor, x: Tensor) -> Tensor:
        joined: Tensor = below.layer_above_input(output, x) if hasattr(below, "layer_above_input") else output  # type: ignore[operator]
        return joined


def _stack(cell_or_cells: nn.Module | Sequence[nn.Module], num_layers: int) -> list[nn.Module]:
    if not isinstance(num_layers, int) or num_layers < 1:
        raise ConfigError(f"num_layers must be an int of at least 1, got {num_layers!r}")
    if isinstance(cell_or_cells, nn.Module) and not isinstance(cell_or_cells, nn.ModuleList):
        cells = [cell_or_cells]
        check_cell(cell_or_cells)
        while len(cells) < num_layers:
            cells.append(_above(cells[-1]))
        return cells
    if isinstance(cell_or_cells, type) or not isinstance(cell_or_cells, Iterable):
        if isinstance(cell_or_cells, type):
            raise CellError(f"ParaRNN got the class {cell_or_cells.__name__}; pass a cell made of it, {cell_or_cells.__name__}(...)")
        raise CellError(f"ParaRNN takes a cell or a sequence of cells, got {type(cell_or_cells).__name__}")
    cells = list(cell_or_cells)
    if not cells:
        raise CellError("ParaRNN needs at least one cell")
    if num_layers not in (1, len(cells)):
        raise ConfigError(f"num_layers={num_layers}, but {len(cells)} cells were given; leave num_layers out")
    for cell in cells:
        check_cell(cell)
    return cells


def _above(cell: nn.Module) -> nn.Module:
    if hasattr(cell, "layer_above"):
        above: nn.Module = cell.layer_above()  # type: ignore[operator]
        return above
    if not hasattr(cell, "reset_parameters"):
        raise CellError(
            f"{type(cell).__name__} cannot be stacked by num_layers: it has neither layer_above() nor reset_parameters(); "
            "pass the cells of all layers as a list"
        )
    fresh = copy.deepcopy(cell)
    fresh.reset_parameters()  # type: ignore[operator]
    return fresh


def _in_parallel(config: NewtonConfig) -> NewtonConfig:
    return replace(config, interval="parallel")


# The same object each time, by which a solve of the same form is recognised.
_same_in_parallel = functools.lru_cache(maxsize=64)(_in_parallel)
