"""The checks of a backend of an operation that has an example: results and gradients are those of the operation's definition.

The definition is computed in double precision from the same numbers, so that only the backend rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.conformance.op_examples import Call, Key
from pararnn.conformance.placing import served
from pararnn.errors import ConformanceError, sentence
from pararnn.provenance import Entry
from pararnn.specs import BackendSpec

Implementation: TypeAlias = Callable[..., Any]
Check: TypeAlias = Callable[[Implementation, Call], None]
Gradients: TypeAlias = dict[Key, Tensor | None]


def check_op_values(backend: Entry[BackendSpec]) -> str | None:
    """The results are those of the definition, in every precision that the backend serves."""
    return _on_every_call(backend, _hold_values, needs_grad=False)


def check_op_of_any_strides(backend: Entry[BackendSpec]) -> str | None:
    """Tensors need not be contiguous, nor the gradient of a result, which is one number expanded where the result is summed."""
    words = "of tensors that are not contiguous "

    def check(implementation: Implementation, call: Call) -> None:
        _hold_values(implementation, call.map(_strided), words)

    def check_gradients(implementation: Implementation, call: Call) -> None:
        _hold_gradients(implementation, call.map(_strided), _expanded, words)

    reason = _on_every_call(backend, check, needs_grad=False)
    _on_every_call(backend, check_gradients, needs_grad=True)
    return reason


def check_op_is_repeatable(backend: Entry[BackendSpec]) -> str | None:
    """Equal inputs give equal bits on the CPU, and everywhere they stay as they are; gradients likewise."""
    reason = _on_every_call(backend, _hold_bits, needs_grad=False)
    _on_every_call(backend, _hold_bits_of_gradients, needs_grad=True)
    return reason


def check_op_gradients(backend: Entry[BackendSpec]) -> str | None:
    """The gradients of the definition are all there and the same, by all tensors at once and by each alone."""

    def check(implementation: Implementation, call: Call) -> None:
        _hold_gradients(implementation, call, _waves)
        for key in _differentiable(call):
            _hold_gradients(implementation, call, _waves, "where no other is wanted ", (key,))

    return _on_every_call(backend, check, needs_grad=True)


CHECKS: tuple[Callable[[Entry[BackendSpec]], str | None], ...] = (
    check_op_values,
    check_op_of_any_strides,
    check_op_is_repeatable,
    check_op_gradients,
)


def _on_every_call(backend: Entry[BackendSpec], check: Check, *, needs_grad: bool) -> str | None:
    """Run `check` on every call that the backend serves; why there is none, where there is none."""
    found = served(backend, needs_grad=needs_grad, seed=int(torch.randint(2**31, ())))
    if isinstance(found, str):
        return found
    implementation = backend.load()
    for call in found:
        check(implementation, call)
    return None


def _hold_values(implementation: Implementation, call: Call, what: str = "") -> None:
    with torch.no_grad():
        found, like, exact = _run(implementation, call), _of_definition(call), _of_definition(call.map(_double))
    if len(found) != len(like):
        raise ConformanceError(f"{call.request}: the backend gives {len(found)} results and the definition {len(like)}")
    for result, form, truth in zip(found, like, exact, strict=True):
        if (how := difference(result, truth.to(form.dtype))) is not None:
            raise ConformanceError(f"{call.request}: the result {what}and that of the definition differ {how}")


def _hold_gradients(
    implementation: Implementation, call: Call, cotangent: Callable[[Tensor], Tensor], what: str = "", wanted: tuple[Key, ...] | None = None
) -> None:
    keys = _differentiable(call) if wanted is None else wanted
    truth = _gradients(_of_definition, call.map(_double), keys, cotangent)
    if all(gradient is None for gradient in truth.values()):
        return
    found = _gradients(lambda one: _run(implementation, one), call, keys, cotangent)
    for key, gradient in found.items():
        expected = truth[key]
        if expected is None:
            expected = torch.zeros_like(call.tensors()[key])
        elif gradient is None:
            raise ConformanceError(f"{call.request}: the gradient by {call.name(key)} {what}is missing; the definition has one")
        if gradient is not None and (how := difference(gradient, expected.to(call.tensors()[key].dtype), "gradients")) is not None:
            raise ConformanceError(f"{call.request}: the gradient by {call.name(key)} {what}and that of the definition differ {how}")


def _hold_bits(implementation: Implementation, call: Call) -> None:
    def once(one: Call) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return _run(implementation, one)

    _hold_same(call, once, "results")


def _hold_bits_of_gradients(implementation: Implementation, call: Call) -> None:
    def once(one: Call) -> tuple[Tensor, ...]:
        found = _gradients(lambda leaves: _run(implementation, leaves), one, _differentiable(one), _waves)
        return tuple(gradient for gradient in found.values() if gradient is not None)

    _hold_same(call, once, "gradients")


def _hold_same(call: Call, once: Callable[[Call], tuple[Tensor, ...]], what: str) -> None:
    before = call.map(torch.clone)
    first, second = once(call), once(before.map(torch.clone))
    for key, tensor in call.tensors().items():
        if not torch.equal(tensor, before.tensors()[key]):
            raise ConformanceError(f"{call.request}: the backend writes into {call.name(key)}; write into a tensor of its own")
    if call.request.device == "cpu" and not (len(first) == len(second) and all(map(torch.equal, first, second))):
        raise ConformanceError(f"{call.request}: two calls with equal inputs give {what} of other bits; sum in a fixed order")


def _gradients(function: Callable[[Call], tuple[Tensor, ...]], call: Call, keys: Iterable[Key], cotangent: Callable[[Tensor], Tensor]) -> Gradients:
    """The gradient by each of `keys`, None where there is none, when the gradient of every result is what `cotangent` gives for it."""
    leaves: dict[Key, Tensor] = {key: call.tensors()[key].detach().requires_grad_() for key in keys}
    results = [result for result in function(call.with_tensors(leaves)) if result.requires_grad]
    if not results:
        return dict.fromkeys(leaves)
    found = torch.autograd.grad(results, list(leaves.values()), [cotangent(result) for result in results], allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _run(implementation: Implementation, call: Call) -> tuple[Tensor, ...]:
    try:
        return _tensors(implementation(*call.args, **call.kwargs), f"{call.request}: the backend")
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(f"{call.request}: the backend raises ({sentence(error)}) although its reasons name no obstacle") from error


def _of_definition(call: Call) -> tuple[Tensor, ...]:
    return _tensors(call.definition(*call.args, **call.kwargs), f"{call.request}: the definition")


def _tensors(result: Any, who: str) -> tuple[Tensor, ...]:
    results = result if isinstance(result, tuple) else (result,)
    for one in results:
        if not isinstance(one, Tensor):
            raise ConformanceError(f"{who} gives {type(one).__name__}; give a tensor, or a tuple of tensors")
    return results


def _differentiable(call: Call) -> tuple[Key, ...]:
    return tuple(key for key, tensor in call.tensors().items() if tensor.is_floating_point() or tensor.is_complex())


def _double(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers with others between them."""
    return torch.stack((tensor, torch.full_like(tensor, 77)), dim=-1)[..., 0]


def _waves(result: Tensor) -> Tensor:
    """A gradient in which no two numbers are alike, and no complex one is real."""
    turns = torch.arange(1, result.numel() + 1, device=result.device, dtype=torch.float64).reshape(result.shape)
    return (torch.polar(torch.ones_like(turns), turns) if result.is_complex() else turns.cos()).to(result.dtype)


def _expanded(result: Tensor) -> Tensor:
    """The gradient of a sum: one number, whose strides are all zero."""
    return torch.ones((), dtype=result.dtype, device=result.device).expand(result.shape)
