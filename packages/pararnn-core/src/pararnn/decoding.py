"""Decoding: one step of a `ParaRNN` after the other, in memory that stays where it is, as one CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.compiler.stepping import CellStep
from pararnn.cuda_graphs import end_recordings, without_cached_casts
from pararnn.decoder_states import given_states, initial_states
from pararnn.errors import BackendError, ConfigError, DifferentiationError, DTypeError, ShapeError, sentence
from pararnn.module_tensors import ModuleTensors
from pararnn.rows import Rows, mask_of
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

    Weights that are edited in place count from the next step on. Where one is replaced by another tensor, a module by another module, or the training
    mode or autocast is switched, the step is prepared anew. What a cell keeps besides (a number, a flag) is read when the step is prepared: call
    `refresh` after changing it. A step that fails leaves states and output as they were, and the decoder as able to step as before.

    Attributes:
        model: the layers, whose weights are read at every step.
        batch: rows that are decoded side by side.
        states: the state `(batch, state)` of every layer, always the same tensors; values written into them count.
        input: `(batch, input)`, the last sample, which a step without an argument reads; None before the first step.
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
        self._before: tuple[Tensor, ...] = ()
        with torch.inference_mode(False), torch.no_grad():
            self.states: tuple[Tensor, ...] = tuple(state.clone() for state in model.initial_state(batch))
        self._device = self.states[0].device
        self._device_type, self._on_gpu = self._device.type, self.states[0].is_cuda
        if graph == "always" and not self._on_gpu:
            raise ConfigError(f"graph='always', but the states are on {self._device}, and only CUDA devices have graphs; use graph='auto'")
        self.refresh()

    def refresh(self) -> None:
        """Forget what was compiled and recorded: the next step looks at the cells anew. The states stay as they are."""
        self._look_at_cells()
        self._again: Callable[[], Tensor] | None = None
        self._is_replayed = False
        self._no_graph = "graph='never'" if self.graph == "never" else "" if self._on_gpu else f"the states are on {self._device}"

    def _look_at_cells(self) -> None:
        # Modules are slow to read.
        self._layers: list[Any] = list(self.model.layers)
        self._steps = [CellStep(cell, self.model.config) for cell in self._layers]
        self._tensors = ModuleTensors(self.model)
        # Nothing is prepared for these cells yet.
        self._circumstances: tuple[object, ...] = ()
        self._is_output_held = False

    def step(self, x: Tensor | None = None) -> Tensor:
        """The output `(batch, output)` for a sample `x` `(batch, input)`, or for what stands in `input`; the states move on.

        It is the same tensor each time, overwritten by the next step: clone what is to be kept. `x` is copied and may come from another device.

        Raises:
            ShapeError, DTypeError: `x` is no sample for every row, or differs in shape or dtype from those before, and the model is still the same.
            DifferentiationError: `x` requires a gradient.
            ConfigError: the states of the model have another shape or dtype, or are more or fewer, than when this decoder was made.
            BackendError: `graph="always"`, and the step cannot be recorded; or the configuration names a backend that cannot serve.
        """
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            return self._captured(x)
        if self._again is None or self._circumstances != self._look_around() or self._tensors.replaced():
            return self._first(x)
        if x is not None:
            self._take(x)
        return self._again()

    def reset(self, rows: Rows | None = None) -> None:
        """Put states back to where the cells begin: of all rows, of those whose numbers are given, or of those where a mask `(batch,)` is true.

        Numbers and masks come as tensors, arrays or sequences, and a plain int is one row. uint8 is refused: some take it for a mask.

        Raises:
            ShapeError, DTypeError: `rows` names rows that are not there, or is of another kind; nothing is reset then.
            ConfigError: the states of the model are others than when this decoder was made.
        """
        self.load(initial_states(self.model, self.batch, self.states), rows)

    def load(self, states: Tensor | Sequence[Tensor], rows: Rows | None = None) -> None:
        """Go on from `states`, `(batch, state)` for each layer, such as the final ones of a prompt; with `rows`, taken as by `reset`, only these.

        Raises:
            ShapeError: there is not one `(batch, state)` tensor for each layer, or `rows` names rows that are not there.
            DTypeError: `states` are no tensors, or are complex where those of the decoder are real; or `rows` holds neither numbers nor booleans.
        """
        given = given_states(states, self.states)
        with torch.inference_mode(False), torch.no_grad():
            mask = None if rows is None else mask_of(rows, self.batch, self._device)
            pairs = zip(self.states, given, strict=True)
            # They may be states of this decoder themselves, of other layers or in another order.
            fresh = [new.to(mine, copy=True) if mask is None else torch.where(mask, new.to(mine), mine) for mine, new in pairs]
            torch._foreach_copy_(self.states, fresh)

    def explain(self) -> str:
        """Who steps each layer and why, and whether steps are replayed; after the first step."""
        lines = [f"decoder of {self.batch} rows"]
        for depth, (cell, step) in enumerate(zip(self._layers, self._steps, strict=True)):
            why = "".join(f"\n    {obstacle}" for obstacle in step.obstacles)
            lines.append(f"  layer {depth}, {type(cell).__name__}: {step.backend or 'not stepped yet'}{why}")
        lines.append("  replayed as a CUDA graph" if self._is_replayed else f"  no CUDA graph: {self._no_graph or 'nothing is recorded yet'}")
        return "\n".join(lines)

    def _take(self, x: Tensor, *, anew: bool = False) -> None:
        """Copy `x` into the input; where it is taken `anew`, another shape or dtype makes another input."""
        held = None if anew else self.input
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[0] != self.batch or (held is not None and x.shape != held.shape):
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            wanted = f"({self.batch}, input)" if held is None else str(tuple(held.shape))
            raise ShapeError(f"step takes one sample a row, a tensor x of shape (batch, input) = {wanted}, got {found}")
        if x.requires_grad and torch.is_grad_enabled():
            raise DifferentiationError("x requires a gradient, and a decoder keeps no graph; use ParaRNN.step, or pass x.detach()")
        if held is None:
            held = self.input = self._input_like(x)
        elif x.dtype != held.dtype:
            raise DTypeError(f"x is {x.dtype}, and was {held.dtype} at the first step; convert it with x.to({held.dtype})")
        if x is not held:
            held.copy_(x)

    def _input_like(self, x: Tensor) -> Tensor:
        """The tensor for samples like `x`: the one that is there, or a new one where it will not do."""
        if self.input is not None and (self.input.shape, self.input.dtype) == (x.shape, x.dtype):
            return self.input
        with torch.inference_mode(False):
            return torch.empty(x.shape, dtype=x.dtype, device=self._device)

    def _look_around(self) -> tuple[object, ...]:
        kind = self._device_type
        return self.model.training, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def _first(self, x: Tensor | None) -> Tensor:
        """A step that prepares the next ones; where it fails, the next one does."""
        initial_states(self.model, self.batch, self.states)
        kept = self.input, self.output
        try:
            if x is not None:
                self._take(x, anew=True)
            self.refresh()
            self._circumstances = self._look_around()
            if not self._no_graph:
                with torch.inference_mode(False), torch.no_grad():
                    return self._record()
            self._again = self._launched
            return self._launched()
        except BaseException:
            self.input, self.output = kept
            self.refresh()
            raise

    def _launched(self) -> Tensor:
        # Buffers made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self._before = self._before or tuple(torch.empty_like(state) for state in self.states)
            torch._foreach_copy_(self._before, self.states)
            try:
                return self._advance()
            except BaseException:
                torch._foreach_copy_(self.states, self._before)
                raise

    def _captured(self, x: Tensor | None) -> Tensor:
        """A step that becomes part of a graph of the caller's. What was recorded here stays: a graph that goes away would end that recording."""
        if x is not None:
            self._take(x)
        if self._tensors.replaced_module():
            self._look_at_cells()
        with torch.inference_mode(False), torch.no_grad():
            return self._advance()

    def _record(self) -> Tensor:
        """Make one step, and record it for the next ones."""
        before = [state.clone() for state in self.states]
        current, side, graph = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device), torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), without_cached_casts():
            side.wait_stream(current)
            try:
                with torch.cuda.stream(side):
                    for _ in range(RUNS_BEFORE_RECORDING):
                        self._advance()
            finally:
                current.wait_stream(side)
                self.load(before)
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    output = self._advance()
            except RuntimeError as error:
                torch.cuda.set_stream(current)
                end_recordings(self._device)
                # The end of a recording fails for what happened inside of it.
                what = f"the step cannot be recorded ({sentence(error.__context__ or error).partition(chr(10))[0]})"
                if self.graph == "always":
                    raise BackendError(f"{what}, and graph='always'; use graph='auto', or keep the cells from reading values on the host") from error
                self._no_graph, self._again = what, self._launched
                return self._launched()

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
        below = None
        for cell, step, state in zip(self._layers, self._steps, self.states, strict=True):
            if below is not None:
                output = self.model._input_above(below, output, sample)
            step(output, state)
            output = cell.readout(state.unsqueeze(1))
            output = output.to(sample.dtype) if sample.dtype in HALF else output
            below = cell
        last, held = output.select(1, 0), self.output
        if held is None or not self._is_output_held:
            if held is None or (held.shape, held.dtype, held.device) != (last.shape, last.dtype, last.device):
                self.output = held = torch.empty_like(last)
            self._is_output_held = True
        return held.copy_(last)
