"""Decoding: one step of a `ParaRNN` after the other, in memory that stays where it is, as one CUDA graph on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.compiler.stepping import CellStep
from pararnn.errors import BackendError, ConfigError, DifferentiationError, DTypeError, ShapeError, sentence
from pararnn.module_tensors import ModuleTensors
from pararnn.scans.api import HALF

if TYPE_CHECKING:
    from pararnn.layers import ParaRNN

Graph: TypeAlias = Literal["auto", "always", "never"]
# Compilers, libraries and the allocator settle in the runs before a recording.
RUNS_BEFORE_RECORDING = 3


class Decoder:
    """`ParaRNN.step` for many steps of the same rows: inputs, states and outputs have tensors of their own, which each step overwrites.

    A step is the drive of every layer, its step, and its readout. Where the step of a cell can be compiled, one kernel makes it, in place; elsewhere
    plain PyTorch does. On a CUDA device the whole is recorded in a CUDA graph at the first step, and replayed from then on. There are no gradients:
    everything runs as under `torch.no_grad()`, with dropout between layers off.

    Weights that are edited in place count from the next step on. Where one is replaced by another tensor, or the training mode or autocast is
    switched, the step is prepared anew. What a cell keeps besides tensors (a number, a flag) is read when the step is prepared: call `refresh` after
    changing it.

    Attributes:
        model: the layers, whose weights are read at every step.
        batch: rows that are decoded side by side.
        states: the state `(batch, state)` of every layer, always the same tensors; values written into them count.
        input: `(batch, input)`, what a step without an argument reads; None before the first step.
        output: `(batch, output)` of the last step; None before the first.
    """

    def __init__(self, model: ParaRNN, batch: int, *, graph: Graph = "auto") -> None:
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise ConfigError(f"batch must be an int of at least 1, got {batch!r}")
        if graph not in ("auto", "always", "never"):
            raise ConfigError(f"graph must be 'auto', 'always' or 'never', got {graph!r}")
        self.model, self.batch, self.graph = model, batch, graph
        self.input: Tensor | None = None
        self.output: Tensor | None = None
        with torch.inference_mode(False), torch.no_grad():
            self.states: tuple[Tensor, ...] = tuple(state.clone() for state in model.initial_state(batch))
        self._on_gpu = self.states[0].is_cuda
        if graph == "always" and not self._on_gpu:
            raise ConfigError(f"graph='always', but the states are on {self.states[0].device}, and only CUDA devices have graphs; use graph='auto'")
        self.refresh()

    def refresh(self) -> None:
        """Forget what was compiled and recorded: the next step looks at the cells anew. The states stay as they are."""
        self._steps = [CellStep(cell, self.model.config) for cell in self.model.layers]
        self._again: Callable[[], Tensor] | None = None
        self._tensors: ModuleTensors | None = None
        self._circumstances: tuple[object, ...] = ()
        self._is_replayed = False
        self._no_graph = "" if self._on_gpu else f"the states are on {self.states[0].device}"
        if self.graph == "never":
            self._no_graph = "graph='never'"

    def step(self, x: Tensor | None = None) -> Tensor:
        """The output `(batch, output)` for a sample `x` `(batch, input)`, or for what stands in `input`; the states move on.

        It is the same tensor each time, overwritten by the next step: clone what is to be kept. `x` is copied and may come from another device.

        Raises:
            ShapeError, DTypeError: `x` is no sample for every row, or has another dtype than the first one had.
            DifferentiationError: `x` requires a gradient.
            ConfigError: the model has moved to another dtype since this decoder was made.
            BackendError: `graph="always"`, and the step cannot be recorded; or the configuration names a backend that cannot serve.
        """
        if x is not None:
            self._take(x)
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            # Part of a graph of the caller's. What was recorded here stays: a graph that goes away would end that recording.
            return self._launched()
        if self._again is None or not self._is_current():
            return self._first()
        return self._again()

    def reset(self, rows: Tensor | Sequence[int] | None = None) -> None:
        """Put states back to where the cells begin: of all rows, of those whose numbers are given, or of those where a mask `(batch,)` is true."""
        with torch.inference_mode(False), torch.no_grad():
            self.load(self.model.initial_state(self.batch), rows)

    def load(self, states: Tensor | Sequence[Tensor], rows: Tensor | Sequence[int] | None = None) -> None:
        """Go on from `states`, `(batch, state)` for each layer, such as the final ones of a prompt; with `rows`, only these rows do.

        Raises:
            ShapeError: there is not one `(batch, state)` tensor for each layer, or `rows` names rows that are not there.
        """
        given = (states,) if isinstance(states, Tensor) else tuple(states)
        if [tuple(state.shape) for state in given] != [tuple(state.shape) for state in self.states]:
            wanted, found = ([tuple(state.shape) for state in some] for some in (self.states, given))
            raise ShapeError(f"states have shapes {found}; they must be (batch, state) for each layer, {wanted}")
        with torch.inference_mode(False), torch.no_grad():
            mask = None if rows is None else self._mask(rows)
            for mine, new in zip(self.states, given, strict=True):
                mine.copy_(new if mask is None else torch.where(mask, new.to(mine), mine))

    def explain(self) -> str:
        """Who steps each layer and why, and whether steps are replayed; after the first step."""
        lines = [f"decoder of {self.batch} rows"]
        for depth, (cell, step) in enumerate(zip(self.model.layers, self._steps, strict=True)):
            why = "".join(f"\n    {obstacle}" for obstacle in step.obstacles)
            lines.append(f"  layer {depth}, {type(cell).__name__}: {step.backend or 'not stepped yet'}{why}")
        if self._is_replayed:
            lines.append("  replayed as a CUDA graph")
        else:
            lines.append(f"  no CUDA graph: {self._no_graph or 'nothing is recorded yet'}")
        return "\n".join(lines)

    def _take(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[0] != self.batch or (self.input is not None and x.shape != self.input.shape):
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            wanted = f"({self.batch}, input)" if self.input is None else str(tuple(self.input.shape))
            raise ShapeError(f"step takes one sample a row, a tensor x of shape (batch, input) = {wanted}, got {found}")
        if x.requires_grad and torch.is_grad_enabled():
            raise DifferentiationError("x requires a gradient, and a decoder keeps no graph; use ParaRNN.step, or pass x.detach()")
        if self.input is None:
            with torch.inference_mode(False):
                self.input = torch.empty(x.shape, dtype=x.dtype, device=self.states[0].device)
        if x.dtype != self.input.dtype:
            raise DTypeError(f"x is {x.dtype}, and was {self.input.dtype} at the first step; convert it with x.to({self.input.dtype})")
        if x is not self.input:
            self.input.copy_(x)

    def _is_current(self) -> bool:
        return self._circumstances == self._look_around() and self._tensors is not None and not self._tensors.replaced()

    def _look_around(self) -> tuple[object, ...]:
        device = self.states[0].device.type
        return self.model.training, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def _first(self) -> Tensor:
        """A step that prepares the next ones."""
        self.refresh()
        self._tensors, self._circumstances = ModuleTensors(self.model), self._look_around()
        if self._no_graph:
            output = self._launched()
            self._again = self._launched
            return output
        with torch.inference_mode(False), torch.no_grad():
            return self._record()

    def _launched(self) -> Tensor:
        # Buffers made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            return self._advance()

    def _record(self) -> Tensor:
        """Make one step, and record it for the next ones."""
        before = [state.clone() for state in self.states]
        current, side, graph = torch.cuda.current_stream(before[0].device), torch.cuda.Stream(before[0].device), torch.cuda.CUDAGraph()
        with torch.cuda.device(before[0].device), _without_cached_casts():
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(RUNS_BEFORE_RECORDING):
                    self._advance()
            current.wait_stream(side)
            self.load(before)
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    output = self._advance()
            except RuntimeError as error:
                torch.cuda.set_stream(current)
                _end_recordings(before[0].device)
                # The end of a recording fails for what happened inside of it.
                what = f"the step cannot be recorded ({sentence(error.__context__ or error).partition(chr(10))[0]})"
                if self.graph == "always":
                    raise BackendError(f"{what}, and graph='always'; use graph='auto', or keep the cells from reading values on the host") from error
                self._no_graph, self._again = what, self._launched
                return self._advance()

        def replay() -> Tensor:
            graph.replay()
            return output

        self._again, self._is_replayed = replay, True
        return replay()

    def _advance(self) -> Tensor:
        """One step of all layers from `input`; states and output are overwritten."""
        if self.input is None:
            raise ShapeError(f"the first step has to be given a sample x of shape (batch, input) = ({self.batch}, input)")
        output = sample = self.input.unsqueeze(1)
        for depth, (cell, step, state) in enumerate(zip(self.model.layers, self._steps, self.states, strict=True)):
            if depth:
                output = self.model._input_above(self.model.layers[depth - 1], output, sample)
            step(output, state)
            output = cell.readout(state.unsqueeze(1))  # type: ignore[operator]
            output = output.to(sample.dtype) if sample.dtype in HALF else output
        if self.output is None:
            self.output = torch.empty_like(output[:, 0])
        return self.output.copy_(output[:, 0])

    def _mask(self, rows: Tensor | Sequence[int]) -> Tensor:
        """`rows` as a mask `(batch, 1)` on the device of the states."""
        device = self.states[0].device
        given = rows if isinstance(rows, Tensor) else torch.tensor(list(rows), dtype=torch.int64)
        if given.dtype == torch.bool:
            if tuple(given.shape) != (self.batch,):
                raise ShapeError(f"a mask of rows has the shape (batch,) = ({self.batch},), got {tuple(given.shape)}")
            return given.to(device).unsqueeze(1)
        # Numbers that are on a GPU already are not waited for.
        if not given.is_cuda and given.numel() and not 0 <= int(given.min()) <= int(given.max()) < self.batch:
            raise ShapeError(f"rows are numbers from 0 to {self.batch - 1}, got {given.flatten().tolist()}")
        mask = torch.zeros(self.batch, dtype=torch.bool, device=device)
        return mask.index_fill_(0, given.flatten().to(device), True).unsqueeze(1)


def _end_recordings(device: torch.device) -> None:
    """A recording that fails leaves torch (seen in 2.11) with a random generator that waits for its end; one that succeeds ends it."""
    # Decoding goes on without random numbers, should it not.
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device=device)


@contextlib.contextmanager
def _without_cached_casts() -> Iterator[None]:
    """Weights are cast inside the recording, so that a replay sees their values of that moment."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
