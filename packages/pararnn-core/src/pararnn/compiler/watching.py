"""Whether a step is the one that it was, told by looking where its facts were found, which takes a tenth of the time that finding them takes.

`identity` compares the facts of a step. Here each place that gave such a fact has to hold what it held: the very same number, text, class or module;
a tensor of the same form; a function of the same code without anything of its own. Places that were empty have to be empty. What can change inside,
such as a list or an object, is turned into facts anew. So whatever changes a fact is seen, and more than that: an equal number that is another object
is taken for a change, after which the facts decide.

Modules inside of the cell are held weakly and the cell not at all, so nothing lives longer for being watched.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.compiler.freezing import CONTAINERS, EVERYWHERE, HOOKS, INTERNAL, KEEPERS, PLAIN, Facts
from pararnn.compiler.reading import MISSING, Reading

FIXED = (type, types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType, torch._ops.OpOverload)
HOMES = ("_parameters", "_buffers")
TENSORS = (Tensor, nn.Parameter)
# Asked at each solve, where a loop would take longer.
_forward, _forward_pre, _backward, _backward_pre = EVERYWHERE

_Form: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]


class _Tensors(NamedTuple):
    """The names in a dictionary, and of those that are read the form of the tensor, None where there is none."""

    home: str
    names: tuple[str, ...]
    forms: tuple[tuple[str, _Form | None], ...]


class _Module(NamedTuple):
    """What a module was found to be; `at` gives it, and is None for the cell itself."""

    at: Callable[[], nn.Module | None] | None
    kind: type
    training: Any
    tensors: tuple[_Tensors, ...]
    modules: tuple[str, ...]
    inner: tuple[tuple[str, Callable[[], nn.Module | None]], ...]
    same: tuple[tuple[str, Any], ...]
    formed: tuple[tuple[str, _Form], ...]
    changing: tuple[str, ...]
    absent: frozenset[str]


class Watch:
    """The places that the method `function` of `cell`, of which `reading` was made, reads.

    Raises:
        UnwatchableError: the code may read any attribute, or hooks, or modules of a kind that is not looked into.
    """

    def __init__(self, cell: nn.Module, function: types.FunctionType, reading: Reading) -> None:
        if reading.names is None or any(EVERYWHERE):
            raise UnwatchableError
        self._reading, self._names = reading, reading.names
        self._function = function.__code__, function.__globals__, _is_plain(function)
        self._modules: list[_Module] = []
        self._look_into(cell, None, [])
        self._changing = [(home.get, name, value) for home, name in reading.places() if is_fixed(value := home.get(name))]
        self._open = [(home.get, name) for home, name in reading.places() if not is_fixed(home.get(name))]
        self._facts = self._changed(self._values(cell, function))

    def is_right(self, cell: nn.Module, function: types.FunctionType) -> bool:
        """Whether `function` of `cell` still reads what it read."""
        code, seen, is_plain = self._function
        if _forward or _forward_pre or _backward or _backward_pre:
            return False
        if function.__code__ is not code or function.__globals__ is not seen or (is_plain and not _is_plain(function)):
            return False
        for one in self._modules:
            module = cell if one.at is None else one.at()
            if module is None or not _is_same(module, one):
                return False
        for get, name, value in self._changing:
            if get(name) is not value:
                return False
        values = self._values(cell, function)
        return (not values or self._changed(values) == self._facts) and self._reading.is_current()

    def _values(self, cell: nn.Module, function: types.FunctionType) -> list[Any]:
        """What can change inside, in an order that is always the same."""
        values: list[Any] = [] if self._function[2] else [function]
        for one in self._modules:
            if one.changing:
                own = (cell if one.at is None else one.at()).__dict__
                values += [own[name] for name in one.changing]
        values += [get(name) for get, name in self._open]
        values += self._reading.closures
        return values

    def _changed(self, values: list[Any]) -> list[Any]:
        found = Facts(self._names)
        for value in values:
            found.add(value)
        return found.facts

    def _look_into(self, module: nn.Module, at: Callable[[], nn.Module | None] | None, seen: list[nn.Module]) -> None:
        seen.append(module)
        own, names = module.__dict__, self._names
        is_open = isinstance(module, CONTAINERS)
        if any(own[hooks] for hooks in HOOKS) or "training" not in own:
            raise UnwatchableError
        tensors = tuple(
            _Tensors(home, tuple(own[home]), tuple((name, _form_of(one)) for name, one in own[home].items() if is_open or name in names))
            for home in HOMES
        )
        inner = {name: one for name, one in own["_modules"].items() if is_open or name in names}
        if not all(isinstance(one, nn.Module) for one in inner.values()):
            raise UnwatchableError
        read = {name: own[name] for name in (own if isinstance(module, KEEPERS) else sorted(names.intersection(own))) if name not in INTERNAL}
        formed = tuple((name, form) for name, one in read.items() if isinstance(one, Tensor) and (form := _form_of(one)) is not None)
        same = tuple((name, one) for name, one in read.items() if is_fixed(one))
        settled = {name for name, _ in (*formed, *same)}
        refs = tuple((name, weakref.ref(one)) for name, one in inner.items())
        changing = tuple(name for name in read if name not in settled)
        absent = names - own.keys()
        self._modules.append(
            _Module(at, type(module), own["training"], tensors, tuple(own["_modules"]), refs, same, formed, changing, frozenset(absent))
        )
        for (_, ref), one in zip(refs, inner.values(), strict=True):
            if not any(one is other for other in seen):
                self._look_into(one, ref, seen)


class UnwatchableError(Exception):
    """What a step reads cannot be told by looking at places."""


def _is_same(module: nn.Module, known: _Module) -> bool:
    own = module.__dict__
    if type(module) is not known.kind or own.get("training", MISSING) is not known.training:
        return False
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return False
    for home, names, forms in known.tensors:
        tensors = own[home]
        if tuple(tensors) != names:
            return False
        for name, form in forms:
            if not _has_form(tensors[name], form):
                return False
    modules = own["_modules"]
    if tuple(modules) != known.modules or not own.keys().isdisjoint(known.absent):
        return False
    for name, at in known.inner:
        if modules[name] is not at():
            return False
    for name, value in known.same:
        if own.get(name, MISSING) is not value:
            return False
    for name, form in known.formed:
        if not _has_form(own.get(name), form):
            return False
    return all(name in own for name in known.changing) if known.changing else True


def _form_of(tensor: Tensor | None) -> _Form | None:
    if tensor is None:
        return None
    if type(tensor) not in TENSORS:
        raise UnwatchableError
    return tensor.shape, tensor.dtype, tensor.device


def _has_form(tensor: Any, form: _Form | None) -> bool:
    if form is None or tensor is None:
        return form is tensor
    shape, dtype, device = form
    return type(tensor) in TENSORS and tensor.dtype is dtype and tensor.shape == shape and tensor.device == device


def is_fixed(value: Any) -> bool:
    """Whether the same object always has the same facts, and holds nothing that should not live longer."""
    kind = type(value)
    if kind is tuple:
        return all(type(one) in PLAIN or type(one) is float for one in value)
    is_free = kind is types.BuiltinFunctionType and (value.__self__ is None or isinstance(value.__self__, (type, types.ModuleType)))
    return kind in PLAIN or kind is float or is_free or isinstance(value, FIXED)


def _is_plain(function: types.FunctionType) -> bool:
    """Whether code and globals are all there is to a function."""
    return not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)
