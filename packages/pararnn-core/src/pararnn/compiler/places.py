"""The tensors that a step reads by name: attributes of its module and of modules inside, and free variables; found, fetched and replaced."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias

from torch import Tensor, nn

Path: TypeAlias = tuple[tuple[str, str], ...]
"""How to come to a tensor from a step: by attributes (`"."`), free variables (`"free"`) and globals (`"global"`)."""
# Where a module keeps what is registered with it.
OWN = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, eq=False)
class Place:
    """A tensor of a step: its name for messages, the way there, and what is there now."""

    name: str
    path: Path
    tensor: Tensor


def places(step: Callable[..., Any]) -> list[Place]:
    """Every place of a tensor that `step` can reach by name; the same tensor at two places is found twice, because one of them may change."""
    return list(_of(step, (), "", set()))


def fetch(step: Any, path: Path) -> Tensor:
    """The tensor that is at `path` now."""
    found = step
    for how, name in path:
        if how == ".":
            found = getattr(found, name)
        elif how == "free":
            found = found.__closure__[found.__code__.co_freevars.index(name)].cell_contents
        else:
            found = found.__globals__[name]
    tensor: Tensor = found
    return tensor


def fetching(path: Path) -> Callable[[Any], Tensor]:
    """What fetches the tensor at `path` from a step."""
    if all(how == "." for how, _ in path):
        return operator.attrgetter(".".join(name for _, name in path))
    return functools.partial(fetch, path=path)


class Replaced:
    """`step` with other tensors at its places, in copies of its modules and functions: other threads may be at work with the originals.

    The lists, dicts and sets of modules are copied too, so that what a step keeps for its next call is gone with the copies.

    Attributes:
        step: what to call instead.
    """

    def __init__(self, step: Callable[..., Any], tensors: Mapping[Path, Tensor]) -> None:
        self._tensors = tensors
        self._copies: dict[int, Any] = {}
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._globals: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.step: Callable[..., Any] = self._with(step, ())

    def changed(self) -> tuple[str, ...]:
        """The attributes of modules that have been set, added or deleted since."""
        names: dict[str, None] = {}
        for now, before in self._attributes:
            names |= dict.fromkeys(name for name in now | before if name not in before or name not in now or now[name] is not before[name])
        return tuple(names)

    def globals_of(self, seen: dict[str, Any]) -> dict[str, Any]:
        """The globals behind those that a copy of a function sees."""
        return next((original for copy, original in self._globals if copy is seen), seen)

    def _with(self, value: Any, path: Path) -> Any:
        if isinstance(value, Tensor):
            return self._tensors.get(path, value)
        if id(value) not in self._copies:
            # What leads back to itself is left as it is.
            self._copies[id(value)] = value
            if isinstance(value, nn.Module):
                self._copies[id(value)] = self._module(value, path)
            elif isinstance(value, MethodType):
                owner = self._with(value.__self__, (*path, (".", "__self__")))
                self._copies[id(value)] = MethodType(self._with(value.__func__, (*path, (".", "__func__"))), owner)
            elif isinstance(value, FunctionType):
                self._copies[id(value)] = self._function(value, path)
        return self._copies[id(value)]

    def _module(self, module: nn.Module, path: Path) -> nn.Module:
        copy: nn.Module = object.__new__(type(module))
        self._copies[id(module)] = copy
        copy.__dict__.update(module.__dict__)
        # Not by attributes, whose setters would register things anew.
        for name in OWN:
            copy.__dict__[name] = dict(module.__dict__[name])
        for home in _homes(copy):
            for name, value in list(home.items()):
                if isinstance(value, Tensor):
                    home[name] = self._tensors.get((*path, (".", name)), value)
                elif name not in OWN:
                    home[name] = self._contents(value)
        for name, inner in copy._modules.items():
            copy._modules[name] = self._with(inner, (*path, (".", name)))
        self._attributes += [(home, dict(home)) for home in _homes(copy)]
        return copy

    def _contents(self, value: Any) -> Any:
        """A list, dict or set with the same things in it, and anything else as it is."""
        if type(value) not in (dict, list, set):
            return value
        if id(value) not in self._copies:
            copy = self._copies[id(value)] = type(value)()
            if isinstance(value, dict):
                copy.update((key, self._contents(one)) for key, one in value.items())
            elif isinstance(value, list):
                copy.extend(self._contents(one) for one in value)
            else:
                copy.update(value)
        return self._copies[id(value)]

    def _function(self, function: FunctionType, path: Path) -> FunctionType:
        free = {name: self._with(content, (*path, ("free", name))) for name, content in _free(function).items()}
        read = {name: self._with(content, (*path, ("global", name))) for name, content in _globals(function).items()}
        cells = tuple(
            CellType(free[name]) if name in free else cell
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        names = {**function.__globals__, **read} if read else function.__globals__
        self._globals.append((names, function.__globals__))
        copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells or None)
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy


def _of(value: Any, path: Path, prefix: str, seen: set[int]) -> Iterator[Place]:
    if isinstance(value, Tensor):
        yield Place(prefix.removesuffix("."), path, value)
        return
    if id(value) in seen or not isinstance(value, (nn.Module, MethodType, FunctionType)):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        for home in _homes(value):
            for name, tensor in home.items():
                if isinstance(tensor, Tensor) and _is_found(value, home, name):
                    yield Place(prefix + name, (*path, (".", name)), tensor)
        for name, module in value._modules.items():
            yield from _of(module, (*path, (".", name)), f"{prefix}{name}.", seen)
    elif isinstance(value, MethodType):
        yield from _of(value.__self__, (*path, (".", "__self__")), prefix, seen)
        yield from _of(value.__func__, (*path, (".", "__func__")), prefix, seen)
    else:
        for name, content in _free(value).items():
            yield from _of(content, (*path, ("free", name)), f"{prefix}{name}.", seen)
        for name, content in _globals(value).items():
            yield from _of(content, (*path, ("global", name)), f"{prefix}{name}.", seen)


def _homes(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module keeps tensors: parameters, buffers, plain attributes."""
    return module._parameters, module._buffers, module.__dict__


def _is_found(module: nn.Module, home: dict[str, Any], name: str) -> bool:
    """Whether the attribute `name` is what lies in `home`, rather than what code of the class makes of it."""
    kind = type(module)
    own = getattr(kind, name, None)
    if home is module.__dict__:
        return not hasattr(type(own), "__set__") and kind.__getattribute__ is object.__getattribute__
    return not hasattr(kind, name) and kind.__getattr__ is nn.Module.__getattr__ and kind.__getattribute__ is object.__getattribute__


def _free(function: FunctionType) -> dict[str, Any]:
    """Free variables that hold tensors, modules or functions."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # An empty cell is a variable that is not assigned yet.
        with contextlib.suppress(ValueError):
            if isinstance(cell.cell_contents, (Tensor, nn.Module, MethodType, FunctionType)):
                found[name] = cell.cell_contents
    return found


def _globals(function: FunctionType) -> dict[str, Any]:
    """Globals that hold tensors or modules; functions among them are not copied."""
    read = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {name: value for name, value in read.items() if isinstance(value, (Tensor, nn.Module))}
