"""Checks of a cell as a module: derivatives of its step, copies, pickles, saved weights, other weights, ensembles."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call, grad, stack_module_state, vmap

from pararnn.conformance.comparison import difference
from pararnn.conformance.samples import at, mode, named_leaves, sized, varied, visited
from pararnn.errors import ConformanceError, sentence
from pararnn.layers import ParaRNN
from pararnn.solver import drive as drives

BATCH, TIME = 2, 9
MEMBERS = 3
# Sentences in which torch asks to be told of an error: here it is the cell that has to change.
REQUEST = re.compile(r"file an? (issue|bug)|file us an? |shout over|github\.com/pytorch", re.IGNORECASE)


def check_step_gradients(cell: Any, x: Tensor) -> None:
    """Gradients of `step` by state and drive are those of finite differences, in float64."""
    x = sized(x, 1, 2)
    state = visited(cell, x)[:, 1].requires_grad_()
    drive = at(cell.drive(x), lambda leaf: leaf[:, 1])
    leaves = [leaf.clone().requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in drives.leaves(drive)]

    def step(state: Tensor, *leaves: Tensor) -> Tensor:
        following: Tensor = cell.step(state, leaves[0] if isinstance(drive, Tensor) else drives.rebuild(drive, leaves))
        return following

    for index, what in enumerate(("the state", *(f"the drive ({name})" for name in named_leaves(drive)))):
        chosen = [tensor.detach().requires_grad_(tensor.requires_grad and place == index) for place, tensor in enumerate((state, *leaves))]
        if not chosen[index].requires_grad:
            continue
        if not step(*chosen).requires_grad:
            moved = [tensor + 1e-2 * (place == index) for place, tensor in enumerate(chosen)]
            if difference(step(*moved), step(*chosen)) is not None:
                raise ConformanceError(f"the gradient of step by {what} is lost on the way; look for detach(), .data and no_grad in step")
            continue
        try:
            torch.autograd.gradcheck(step, tuple(chosen))
        except GradcheckError as error:
            first = str(error).strip().splitlines()[0]
            raise ConformanceError(
                f"the gradient of step by {what} is wrong against finite differences ({first.rstrip('.,:')}); "
                "look at custom autograd functions, detach() and .data in step"
            ) from error


def check_copies(cell: Any, x: Tensor) -> None:
    """Deep copies, pickles and saved weights give the same outputs."""
    x = sized(x, BATCH, TIME)
    with mode(cell, training=False), torch.no_grad():
        expected = ParaRNN(cell)(x)
        for how, make in (("copy.deepcopy", copy.deepcopy), ("pickle", _pickled), ("load_state_dict", _reloaded)):
            try:
                twin = make(cell)
            except Exception as error:
                raise ConformanceError(
                    f"{how} of the cell fails ({sentence(error)}); define the cell at module level and keep lambdas, handles and tensors "
                    "that are on the graph out of its attributes"
                ) from error
            if (found := difference(ParaRNN(twin)(x), expected)) is not None:
                raise ConformanceError(
                    f"after {how} the outputs differ {found}; keep all that the cell needs in parameters, buffers and plain attributes"
                )


def check_functional_call(cell: Any, x: Tensor) -> str | None:
    """Gradients by weights that stand in for the cell's own are those of the walk."""
    x = sized(x, BATCH, TIME)
    weights = {name: weight.requires_grad_() for name, weight in varied(dict(ParaRNN(cell).named_parameters())).items()}
    if not weights:
        return "the cell has no parameters"
    found = []
    with mode(cell, training=False):
        for solver in ("newton", "sequential"):
            outputs = functional_call(ParaRNN(cell, solver=solver), weights, (x,))
            probe = torch.arange(outputs.numel(), device=outputs.device).cos().reshape(outputs.shape).to(outputs.dtype)
            gradients = torch.autograd.grad((outputs * probe).sum().abs(), list(weights.values()), allow_unused=True)
            found.append(
                [torch.zeros_like(weight) if gradient is None else gradient for gradient, weight in zip(gradients, weights.values(), strict=True)]
            )
    for name, parallel, walked in zip(weights, *found, strict=True):
        scale = walked.abs().max().clamp(min=1.0)
        if (how := difference(parallel / scale, walked / scale, "gradients")) is not None:
            raise ConformanceError(
                f"with other weights by torch.func.functional_call, the parallel and the walked gradient by "
                f"{name.removeprefix('layers.0.')} differ {how}; read weights from self inside drive and step, and cache nothing that is made of them"
            )
    return None


def check_ensembles(cell: Any, x: Tensor) -> str | None:
    """`torch.func.vmap` over several sets of weights gives what each gives alone."""
    x = sized(x, BATCH, TIME)
    if not list(cell.parameters()):
        return "the cell has no parameters"
    with mode(cell, training=False), torch.no_grad():
        base = ParaRNN(cell)
        members = [copy.deepcopy(base) for _ in range(MEMBERS)]
        for member in members:
            member.load_state_dict(varied(member.state_dict()))
        expected = torch.stack([member(x) for member in members])
        weights = stack_module_state(members)
        try:
            found = vmap(lambda *state: functional_call(base, state, (x,)))(*weights)
        except Exception as error:
            raise ConformanceError(
                f"the cell fails under torch.func.vmap over its weights ({_told(error)}); use no in-place writes, .item() or branches on values"
            ) from error
    if (how := difference(found, expected)) is not None:
        raise ConformanceError(
            f"an ensemble by torch.func.vmap and its members one by one differ {how}; read weights from self inside drive and step"
        )
    return None


def check_single_samples(cell: Any, x: Tensor) -> str | None:
    """`torch.func.vmap` of `torch.func.grad` over the sequences of a batch gives the gradients of each sequence alone."""
    x = sized(x, BATCH, TIME)
    weights = {name: weight.detach() for name, weight in cell.named_parameters()}
    if not weights:
        return "the cell has no parameters"
    if not getattr(cell, "exact_jacobian", True):
        return "its gradients settle by iteration, which torch.func transforms cannot run"
    base = ParaRNN(cell, solver="newton")

    def loss(parameters: dict[str, Tensor], sequence: Tensor) -> Tensor:
        named = {f"layers.0.{name}": weight for name, weight in parameters.items()}
        total: Tensor = functional_call(base, named, (sequence.unsqueeze(0),)).abs().square().sum()
        return total

    with mode(cell, training=False):
        expected = [grad(loss)(weights, sequence) for sequence in x]
        try:
            found = vmap(grad(loss), in_dims=(None, 0))(weights, x)
        except Exception as error:
            raise ConformanceError(
                f"the cell fails under torch.func.vmap over sequences ({_told(error)}); use no in-place writes, .item() or branches on values"
            ) from error
    for name in weights:
        if (how := difference(found[name], torch.stack([one[name] for one in expected]))) is not None:
            raise ConformanceError(f"the gradient of {name} for each sequence by torch.func.vmap and for each alone differ {how}")
    return None


def _told(error: BaseException) -> str:
    """What an error under `vmap` says: the words of `vmap` itself where another error holds them, without requests to report it to torch."""
    cause: BaseException | None = error
    while cause is not None and not str(cause).startswith("vmap:"):
        cause = cause.__cause__
    kept = [part for part in re.split(r"(?<=[.!?])\s+", sentence(cause or error)) if not REQUEST.search(part)]
    return " ".join(kept).rstrip(".") or type(error).__name__


def _pickled(cell: Any) -> Any:
    return pickle.loads(pickle.dumps(cell))


def _reloaded(cell: Any) -> Any:
    """A copy with other weights into which those of `cell` were loaded."""
    twin, saved = copy.deepcopy(cell), cell.state_dict()
    twin.load_state_dict(varied(saved))
    twin.load_state_dict(saved)
    return twin
