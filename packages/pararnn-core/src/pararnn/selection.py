"""Which backend serves a request, and why not the others.

A backend answers with every obstacle that keeps it from serving. `"auto"` takes the one of highest priority without any (ties: by name);
a backend that is named serves or raises, it is never replaced. Choices are remembered per registry; `clear_cache` forgets them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pararnn import findings
from pararnn.errors import BackendError, sentence
from pararnn.provenance import Entry
from pararnn.registry import HOMES, Catalogue, Registry, installed
from pararnn.specs import BackendSpec

# Every new shape is a new request; a stream of odd lengths must not grow the memory without end.
REMEMBERED = 4096


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be computed, in plain values: no tensors, so that it can be asked about and compared without torch.

    `device` is `"cpu"` or `"cuda"`, `dtype` such as `"float32"`, `shape` pairs of axis and size, `options` pairs for what only one
    operation knows.
    """

    op: str
    device: str = "cpu"
    dtype: str = "float32"
    shape: tuple[tuple[str, int], ...] = ()
    needs_grad: bool = False
    options: tuple[tuple[str, Hashable], ...] = ()

    @classmethod
    def of(
        cls,
        op: str,
        *,
        device: object = "cpu",
        dtype: object = "float32",
        needs_grad: bool = False,
        options: Mapping[str, Hashable] | None = None,
        **sizes: int,
    ) -> Request:
        """A request from keywords: sizes by axis, device and dtype as text or as torch has them (`"cuda:0"` means `"cuda"`)."""
        return cls(
            op=op,
            device=str(device).partition(":")[0],
            dtype=str(dtype).removeprefix("torch."),
            shape=tuple(sizes.items()),
            needs_grad=needs_grad,
            options=tuple(sorted(options.items())) if options else (),
        )

    def size(self, axis: str, default: int | None = None) -> int:
        """The size of `axis`; `BackendError` when the request does not say and no `default` is given."""
        for name, size in self.shape:
            if name == axis:
                return size
        if default is None:
            raise BackendError(f"the request {self} has no axis {axis!r}; pass {axis}=... to Request.of", axis=axis)
        return default

    def option(self, name: str, default: Hashable = None) -> Any:
        """The option `name`, or `default`."""
        return dict(self.options).get(name, default)

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.shape)
        options = " ".join(f"{name}={value}" for name, value in self.options)
        facts = (f"{self.op} on {self.device}", self.dtype, sizes, options, "with gradient" if self.needs_grad else "without gradient")
        return ", ".join(fact for fact in facts if fact)


@dataclass(frozen=True, kw_only=True)
class Considered:
    """A candidate and its obstacles; it can serve when there are none."""

    label: str
    backend: Entry[BackendSpec]
    reasons: tuple[str, ...]

    def is_for(self, device: str) -> bool:
        """Whether it is made for tensors on `device`, as far as that is known: an implementation with an `engine` says where that runs."""
        # What crashed a child process is not imported.
        if findings.crash_of(self.backend) is not None:
            return True
        try:
            make = getattr(self.backend.load(), "engine", None)
            return make is None or bool(make().device == device)
        except Exception:
            return True


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """The backend that serves `request`; `asked` is `"auto"` or the name that was given, `passed_over` what `"auto"` would have taken first."""

    request: Request
    asked: str
    backend: Entry[BackendSpec]
    candidates: Catalogue[BackendSpec]
    passed_over: tuple[Considered, ...] = ()

    @cached_property
    def implementation(self) -> Any:
        """The callable of the chosen backend, imported once."""
        return self.backend.load()

    @cached_property
    def considered(self) -> tuple[Considered, ...]:
        """Every candidate with its obstacles, best first. Asks those that the choice did not need, which may import them."""
        return consider(self.candidates, self.request)

    def explain(self) -> str:
        """The request, and a table of the candidates with what speaks for or against each."""
        return f"{self.request}: {self.candidates.label(self.backend)} (asked for: {self.asked})\n{table(self.considered, self.backend)}"


def select(request: Request, backend: str = "auto", *, registry: Registry | None = None, remember: bool = True) -> Selection:
    """The backend that serves `request`: the best one for `"auto"`, else the one named (`name` or `distribution:name`).

    A repeated question is answered from memory, in a few microseconds; obstacles that come and go (an environment variable, a device)
    need `clear_cache`. `remember=False` leaves no trace of a question that will not be asked again.

    Raises:
        BackendError: nobody can serve, the one named cannot, or nobody has that name; the message holds the table or the names.
        AmbiguousNameError: several distributions offer the bare name.
    """
    registry = installed() if registry is None else registry
    memory: dict[tuple[Request, str], Selection] = registry.memo
    selection = memory.get((request, backend))
    if selection is None:
        candidates = registry.backends(request.op)
        entry, passed_over = _best(candidates, request, registry) if backend == "auto" else (_named(candidates, request, backend), ())
        selection = Selection(request=request, asked=backend, backend=entry, candidates=candidates, passed_over=passed_over)
        if remember:
            if len(memory) >= REMEMBERED:
                memory.clear()
            memory[request, backend] = selection
    return selection


def clear_cache(registry: Registry | None = None) -> None:
    """Forget every choice and reread what `pararnn doctor` found, so that the next `select` asks the backends again."""
    (installed() if registry is None else registry).memo.clear()
    findings.forget()


def consider(candidates: Catalogue[BackendSpec], request: Request) -> tuple[Considered, ...]:
    """Every candidate with all its obstacles for `auto`, best first."""
    return tuple(Considered(label=candidates.label(entry), backend=entry, reasons=_auto_reasons(entry, request)) for entry in _ranked(candidates))


def table(considered: Iterable[Considered], chosen: Entry[BackendSpec] | None = None) -> str:
    """Plain text, one line a candidate and obstacle, `*` before the chosen one."""
    rows = [("", "backend", "priority", "from", "verdict")]
    for one in considered:
        mark = "*" if one.backend is chosen else ""
        verdicts = one.reasons or ("can serve",)
        rows.append((mark, one.label, str(one.backend.spec.priority), str(one.backend.provenance), verdicts[0]))
        rows.extend(("", "", "", "", verdict) for verdict in verdicts[1:])
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join((*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4])).rstrip() for row in rows)


def _ranked(candidates: Catalogue[BackendSpec]) -> list[Entry[BackendSpec]]:
    return sorted(candidates.values(), key=lambda entry: (-entry.spec.priority, entry.name, entry.qualified_name))


def _best(candidates: Catalogue[BackendSpec], request: Request, registry: Registry) -> tuple[Entry[BackendSpec], tuple[Considered, ...]]:
    """The best backend without an obstacle, and those before it, which have some."""
    if not candidates:
        raise BackendError(_nobody(request, registry), request=request)
    found: list[Considered] = []
    for entry in _ranked(candidates):
        reasons = _auto_reasons(entry, request)
        if not reasons:
            return entry, tuple(found)
        found.append(Considered(label=candidates.label(entry), backend=entry, reasons=reasons))
    considered = tuple(found)
    raise BackendError(
        f"no backend can serve {request}; remove an obstacle, or install a backend without it:\n{table(considered)}",
        request=request,
        considered=considered,
    )


def _nobody(request: Request, registry: Registry) -> str:
    home = f"pararnn-{request.op.partition('/')[0]}"
    step = f"pip install {home}" if home in HOMES.values() else f"there are {', '.join(registry.backend_ops) or 'none'}"
    return f"no installed plugin offers a backend of {request.op!r}; {step}"


def _named(candidates: Catalogue[BackendSpec], request: Request, name: str) -> Entry[BackendSpec]:
    if name not in candidates:
        names = ", ".join(("auto", *candidates))
        raise BackendError(f"{request.op} has no backend named {name!r}; there are {names}", request=request, names=tuple(candidates))
    entry = candidates[name]
    if reasons := _reasons(entry, request):
        asked = Considered(label=candidates.label(entry), backend=entry, reasons=reasons)
        considered = tuple(asked if one.backend is entry else one for one in consider(candidates, request))
        raise BackendError(
            f"backend {name!r} was asked for and cannot serve {request}; name another or use 'auto':\n{table(considered, entry)}",
            request=request,
            considered=considered,
        )
    return entry


def _auto_reasons(entry: Entry[BackendSpec], request: Request) -> tuple[str, ...]:
    crash = findings.crash_of(entry)
    if crash is None:
        return _reasons(entry, request)
    # Its reasons function is not asked: importing what crashed a child could crash this process too.
    return (f"it crashed a child process of `pararnn doctor` ({crash}); 'auto' avoids it until `pararnn doctor` finds it well",)


def _reasons(entry: Entry[BackendSpec], request: Request) -> tuple[str, ...]:
    try:
        reasons = entry.resolve(entry.spec.reasons)(request)
    except Exception as error:
        return (f"its reasons function failed: {sentence(error)}",)
    if not isinstance(reasons, (tuple, list)) or not all(isinstance(reason, str) for reason in reasons):
        return (f"its reasons function failed: it returned {reasons!r} instead of a tuple of sentences",)
    return tuple(reasons)
