"""The checks of a backend: what it says of itself, and for `scan/*` the states and gradients of the definition.

Those of backends that solve cells are in `solve_backends`, those of operations with an example in `op_backends`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.conformance import op_backends, solve_backends
from pararnn.conformance.comparison import difference
from pararnn.conformance.laws import STATE, Example
from pararnn.conformance.op_examples import with_examples
from pararnn.conformance.placing import Place, place_of, reasons_of, requests
from pararnn.conformance.report import CheckResult, ConformanceReport, run_checks
from pararnn.conformance.scans import SEGMENTS, Case, cases, hold_gradients, packed_reference
from pararnn.conformance.unserved import two_leaves
from pararnn.errors import ConformanceError
from pararnn.provenance import Entry
from pararnn.registry import installed
from pararnn.scans.api import scan
from pararnn.scans.reference import walk
from pararnn.specs import BackendSpec

BackendCheck: TypeAlias = Callable[[Entry[BackendSpec]], str | None]


def check_reasons(backend: Entry[BackendSpec]) -> str | None:
    """`reasons(request)` gives a tuple of sentences for any request, the same ones each time, and none for some request."""
    for request in requests(backend.spec.op):
        first = reasons_of(backend, request)
        if not isinstance(first, tuple) or not all(isinstance(reason, str) and reason.strip() for reason in first):
            raise ConformanceError(f"reasons({request}) is {first!r}; it must be a tuple of sentences, one for every obstacle, or empty")
        if reasons_of(backend, request) != first:
            raise ConformanceError(f"reasons({request}) changes from one call to the next; choices are remembered, so it must not")
    place = place_of(backend)
    return place if isinstance(place, str) else None


def check_probe(backend: Entry[BackendSpec]) -> str | None:
    """`probe()` exercises the backend once and gives None, or the obstacles that keep it from running here."""
    place = place_of(backend)
    try:
        found = backend.resolve(backend.spec.probe)()
    except ImportError as error:
        found = (str(error),)
    if found is None:
        return None
    if not isinstance(found, tuple) or not found or not all(isinstance(obstacle, str) for obstacle in found):
        raise ConformanceError(f"probe() gives {found!r}; it must give None, or a tuple of sentences that say why the backend cannot run here")
    if isinstance(place, Place):
        raise ConformanceError(f"reasons has no obstacle for {place} but probe() says: {'; '.join(found)}; let reasons say so too")
    return place


def check_scan_states(backend: Entry[BackendSpec]) -> str | None:
    """The states are those of the walk, for odd lengths, no and one step, one row and three, in both directions."""
    for call, place, example in _scans(backend):
        for case in cases(example, place.dtype, place.device):
            _hold(call(case), walk(case.transition, case.bias, case.initial, reverse=case.reverse), case)
    return _reason(backend)


def check_scan_of_any_strides(backend: Entry[BackendSpec]) -> str | None:
    """Inputs need not be contiguous."""
    for call, place, example in _scans(backend):
        for case in cases(example, place.dtype, place.device, (7, 65)):
            strided = case.with_tensors(*(_strided(tensor) for tensor in case.tensors().values()))
            _hold(call(strided), walk(case.transition, case.bias, case.initial, reverse=case.reverse), strided, "of inputs that are not contiguous ")
    return _reason(backend)


def check_scan_of_packs(backend: Entry[BackendSpec]) -> str | None:
    """Sequences packed into one row, empty ones among them, end as each alone does."""
    offsets = (0, *torch.tensor(SEGMENTS).cumsum(0).tolist())
    for call, place, example in _scans(backend):
        for case in cases(example, place.dtype, place.device, (sum(SEGMENTS),)):
            if case.bias.shape[0] == 1:
                starts = torch.randn(len(SEGMENTS), STATE, dtype=place.dtype, device=place.device)
                _hold(call(case, starts.unsqueeze(0), offsets), packed_reference(case, starts), case, "of packed sequences ")
                none = call(case, None, offsets)
                _hold(none, packed_reference(case, torch.zeros_like(starts)), case, "of packed sequences without an initial state ")
    return _reason(backend)


def check_scan_is_repeatable(backend: Entry[BackendSpec]) -> str | None:
    """Equal inputs give equal bits, and stay as they are."""
    for call, place, example in _scans(backend):
        for case in cases(example, place.dtype, place.device, (1, 65)):
            before = {name: tensor.clone() for name, tensor in case.tensors().items()}
            if not torch.equal(call(case), call(case)):
                raise ConformanceError(f"{case.words}: two calls with equal inputs give other bits; sum in a fixed order")
            for name, tensor in case.tensors().items():
                if not torch.equal(tensor, before[name]):
                    raise ConformanceError(f"{case.words}: the backend writes into {name}; write into a tensor of its own")
    return _reason(backend)


def check_scan_gradients(backend: Entry[BackendSpec]) -> str | None:
    """Gradients through `pararnn.scan(..., backend=...)` by maps, terms and initial state are those of the walk."""
    label = installed().backends(backend.spec.op).label(backend) if backend.name in installed().backends(backend.spec.op) else None
    if label is None:
        return "the backend is not installed, so pararnn.scan cannot be asked for it"

    def scanned(case: Case) -> Tensor:
        return scan(case.transition, case.bias, case.initial, reverse=case.reverse, backend=label)

    for _, place, example in _scans(backend):
        for case in cases(example, place.dtype, place.device, (1, 7, 65)):
            hold_gradients(case, scanned, f"pararnn.scan(backend={label!r})")
    return _reason(backend)


ANY_CHECKS: tuple[BackendCheck, ...] = (check_reasons, check_probe)
SCAN_CHECKS: tuple[BackendCheck, ...] = (
    check_scan_states,
    check_scan_of_any_strides,
    check_scan_of_packs,
    check_scan_is_repeatable,
    check_scan_gradients,
)


def backend_checks(op: str | None = None) -> dict[str, BackendCheck]:
    """The checks of a backend of `op`, of any operation if it is left out, by name.

    `check(entry)` raises `ConformanceError`, or returns why there is nothing to check, or None;
    `pararnn.registry.installed().backends(op)` has entries.
    """
    of_kind = {"scan": SCAN_CHECKS, "example": op_backends.CHECKS, "solve": solve_backends.CHECKS}
    kinds = (ANY_CHECKS, *of_kind.values()) if op is None else (ANY_CHECKS, of_kind[_kind(op)])
    return {check.__name__.removeprefix("check_"): check for kind in kinds for check in kind}


def verify_backend(op: str, name: str, *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None) -> ConformanceReport:
    """Run every check on the installed backend `name` of `op`.

    Raises:
        UnknownNameError, AmbiguousNameError: there is no such backend, or there are several.
    """
    entry = installed().backends(op)[name]
    checks = {check_name: functools.partial(check, entry) for check_name, check in backend_checks(op).items()}
    return run_checks(f"backend {name} of {op}", checks, seed=seed, on_result=on_result)


def _kind(op: str) -> str:
    """What a backend of `op` is held to: `"scan"`, `"example"` or `"solve"`; whatever has no example may be what a cell names in `solve_ops`."""
    if op.startswith("scan/"):
        return "scan"
    return "example" if op != "solve" and with_examples(op) else "solve"


def _scans(backend: Entry[BackendSpec]) -> Iterator[tuple[Callable[..., Tensor], Place, Example]]:
    """The scan of the backend, where it works, and examples of every structure that it may be given; nothing where it cannot work here."""
    place = place_of(backend)
    if isinstance(place, str):
        return
    implementation = backend.load()

    def call(case: Case, starts: Any = ..., offsets: tuple[int, ...] | None = None) -> Tensor:
        initial = (None if case.initial is None else case.initial.unsqueeze(1)) if starts is ... else starts
        states: Tensor = implementation(case.transition, case.bias, initial, offsets=offsets, reverse=case.reverse)
        return states

    for example in _examples(backend.spec.op.partition("/")[2]):
        yield call, place, example


def _examples(structure: str) -> tuple[Example, ...]:
    if structure == "generic":
        return (two_leaves,)
    entry = installed().structures.get(structure)
    if entry is None:
        raise ConformanceError(
            f"no installed plugin offers a structure named {structure!r}, so nothing can be scanned by scan/{structure}; register one"
        )
    return (entry.resolve(entry.spec.example),)


def _reason(backend: Entry[BackendSpec]) -> str | None:
    place = place_of(backend)
    return place if isinstance(place, str) else None


def _hold(found: Tensor, expected: Tensor, case: Case, what: str = "") -> None:
    if (how := difference(found, expected)) is not None:
        raise ConformanceError(f"{case.words}: the states {what}and those of the walk differ {how}")


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return torch.stack((tensor, torch.full_like(tensor, float("nan"))), dim=-1)[..., 0]
