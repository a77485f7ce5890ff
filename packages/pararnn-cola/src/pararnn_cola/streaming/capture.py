"""Steps of a learner as a CUDA graph: one launch in the place of dozens, for networks whose step is shorter than the time to launch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ParaRNNError, ShapeError, sentence
from pararnn_cola.errors import StreamError
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.result import StepResult
from pararnn_cola.streaming.bound import BoundLearner, difference, is_flag, moving, signature_of
from pararnn_cola.streaming.sources import at_least_one

SETTLING = 8
"""Blocks after which a learner has to repeat itself, at most; statistics and momentum exist after two steps."""


class CapturedStep:
    """`block` consecutive steps of `learner`, updates included, replayed from a CUDA graph; made by `capture`.

    The learner stays what it was: `learner.state_dict()`, `load_state_dict()`, `reset()`, `apply()` work between replays, and so does `learner.step`.
    Where a step is another one than that which was captured, such as the first after a `reset`, which has no step before it to compare with,
    the block runs uncaptured, step by step.

    Results are tensors of the graph, overwritten by the next replay: clone what you keep. Nobody looks whether a loss is finite.
    """

    def __init__(self, learner: Learner, block: int, u: Tensor, y: Tensor, weight: Tensor | float | None, mask: Tensor | None, warmup: int) -> None:
        self.learner, self.block = learner, block
        self._number = weight if not isinstance(weight, Tensor) else None
        self._inputs = {
            name: tensor.detach().expand(block, *tensor.shape).clone()
            for name, tensor in (("u", u), ("y", y), ("weight", weight), ("mask", mask))
            if isinstance(tensor, Tensor)
        }
        before = learner.state_dict()
        try:
            self._settle(warmup)
            self._bound = BoundLearner(learner)
            self._replay = record(self._body, self._bound.device)
        except ParaRNNError:
            raise
        except Exception as error:
            raise StreamError(
                f"a step of {type(learner).__name__} with {type(learner.optimizer).__name__} cannot be captured ({sentence(error)}); something in it "
                "waits for the device or allocates on the CPU. Use learner.step as it is"
            ) from error
        finally:
            learner.load_state_dict(before)
        self.result = StepResult(self._output, self._loss) if block > 1 else StepResult(self._output[0], self._loss[0])
        """Outputs and losses of the last replay; the tensors are always the same ones."""

    def step(self, u: Tensor, y: Tensor, weight: Tensor | None = None, mask: Tensor | None = None) -> StepResult:
        """`learner.step(u, y, weight, mask)`, replayed; `weight` and `mask` are given if and only if the capture was given tensors for them."""
        return self.run(*(None if part is None else part.unsqueeze(0) for part in (u, y, weight, mask)))  # type: ignore[arg-type]

    def run(self, u: Tensor, y: Tensor, weight: Tensor | None = None, mask: Tensor | None = None) -> StepResult:
        """`block` steps: `u` `(block, batch, *input)`, `y` `(block, batch, ...)`, and so on; gives outputs and losses `(block, ...)`.

        A block of one step, as `step` makes it, gives them without the first dimension.

        Raises:
            ShapeError: a tensor is not of the shape, or one is missing that was captured.
            ConfigError: an option of the optimizer is another one than when the step was captured.
        """
        given = {name: tensor for name, tensor in (("u", u), ("y", y), ("weight", weight), ("mask", mask)) if tensor is not None}
        if given.keys() != self._inputs.keys() or any(tensor.shape != self._inputs[name].shape for name, tensor in given.items()):
            found, wanted = ({name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (given, self._inputs))
            raise ShapeError(f"the captured step takes {wanted}, got {found}; capture again for other shapes", found=found, wanted=wanted)
        for name, tensor in given.items():
            self._inputs[name].copy_(tensor)
        if self._bound.unchanged():
            self._bound.check()
        elif not self._bound.bind():
            self._copy_results(self._steps())
            return self.result
        self._replay()
        self.learner.steps += self.block
        return self.result

    def _steps(self) -> tuple[Tensor, Tensor]:
        """The steps on the fixed inputs, one by one."""
        outputs, losses = [], []
        for index in range(self.block):
            parts = {name: tensor[index] for name, tensor in self._inputs.items()}
            found = self.learner.step(parts["u"], parts["y"], parts.get("weight", self._number), parts.get("mask"))
            outputs.append(found.output)
            losses.append(torch.zeros_like(found.output[..., 0].mean(-1)) if found.loss is None else found.loss)
        return torch.stack(outputs), torch.stack(losses)

    def _body(self) -> None:
        """What is recorded: the steps, and their results put where the next replay reads them."""
        before, steps = signature_of(self.learner), self.learner.steps
        self._output, self._loss = self._steps()
        after = signature_of(self.learner)
        if before != after:
            raise StreamError(
                f"a block of {self.block} steps does not end as it began, but for: {difference(before, after)}. Captured steps repeat themselves "
                "exactly; for a rule with windows, let block be a multiple of their length"
            )
        self._bound.write_back()
        self.learner.steps = steps

    def _copy_results(self, found: tuple[Tensor, Tensor]) -> None:
        self._output.copy_(found[0])
        self._loss.copy_(found[1])

    def _settle(self, warmup: int) -> None:
        """Run blocks until one ends as it began: kernels are chosen by then, and all state exists that is made when it is first needed."""
        with aside(self._inputs["u"].device):
            before = after = signature_of(self.learner)
            for count in range(1, warmup + SETTLING):
                before = after
                self._steps()
                _check_optimizer_state(self.learner)
                after = signature_of(self.learner)
                if after == before and count >= warmup:
                    return
        raise StreamError(
            f"{warmup + SETTLING - 1} blocks of {self.block} steps of {type(self.learner).__name__} never ended as they began, but for: "
            f"{difference(before, after)}. For a rule with windows, let block be a multiple of their length"
        )


def capture(
    learner: Learner, u: Tensor, y: Tensor, *, weight: Tensor | float | None = None, mask: Tensor | None = None, block: int = 1, warmup: int = 3
) -> CapturedStep:
    """`learner.step`, `block` times in a row, as a CUDA graph that is replayed at a fraction of the cost of launching its kernels.

    `u`, `y`, `weight`, `mask` are examples of one step's tensors; a `weight` that is a number is captured as such. `warmup` blocks are learned
    from them and then undone: the learner, its weights and its count of steps are as before, except that a `.grad` which was used already is gone.

    Options of the learner and the optimizer are captured by value, so a new rate needs a new capture (which `run` insists on). The optimizer has
    to be made with `capturable=True` where it has that option; SGD needs nothing. With `update="accumulate"` it is no part of the step.

    Raises:
        ConfigError: there is no CUDA device, or the network is not on it; the optimizer cannot be captured; `block` or `warmup` is below 1.
        StreamError: the step cannot be captured, or does not repeat itself.
    """
    block, warmup = at_least_one("block", block), at_least_one("warmup", warmup)
    device = learner.buffers.flat[0].parameter.device
    require_device(device)
    if learner.update == "step":
        _check_optimizer(learner.optimizer)
    return CapturedStep(learner, block, u, y, weight, mask, warmup)


def require_device(device: torch.device) -> None:
    """Raise `ConfigError` where CUDA graphs cannot be."""
    if not torch.cuda.is_available():
        raise ConfigError("capture() makes CUDA graphs, and torch sees no CUDA device; a CPU launches nothing, use learner.step")
    if device.type != "cuda":
        raise ConfigError(f"capture() makes CUDA graphs, but the network is on {device}; move it with network.to('cuda') before making the learner")


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """A side stream between all that was launched before and all that comes after; torch asks that a warm-up runs on one."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)


def record(body: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Run `body` once, recording instead of computing, and give the function that computes it all again."""
    with torch.cuda.device(device):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                body()
        finally:
            # Where a capture fails, torch's context does not get to the point of going back to the stream of before.
            torch.cuda.set_stream(stream)
    return graph.replay


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS decides on the CPU how far it goes, so it cannot be captured; take SGD, or Adam with capturable=True")
    for index, group in enumerate(optimizer.param_groups):
        if group.get("capturable") is False:
            raise ConfigError(
                f"{kind} counts its steps on the CPU, where a CUDA graph does not count (group {index}); make it as {kind}(..., capturable=True)",
                group=index,
            )


def _check_optimizer_state(learner: Learner) -> None:
    device = learner.buffers.flat[0].parameter.device
    for state in moving(learner).values():
        for key, value in state.items():
            if isinstance(value, Tensor) and is_flag(value, device):
                kind = type(learner.optimizer).__name__
                raise ConfigError(f"{kind} keeps its {key} on the CPU, where a CUDA graph does not change it; take SGD, or Adam with capturable=True")
