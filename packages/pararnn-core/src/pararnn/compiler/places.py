"""The tensors that a step reads by name: attributes of its module and of modules inside, and free variables; found, fetched and replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias

from torch import Tensor, nn

Path: TypeAlias = tuple[tuple[str, str], ...]
"""How to come to a tensor from a step: by attributes (`"."`), free variables (`"free"`) and globals (`"global"`)."""


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


@contextlib.contextmanager
def replaced(step: Callable[..., Any], tensors: Mapping[Path, Tensor]) -> Iterator[Callable[..., Any]]:
    """`step` with other tensors at its places. Modules are changed for the time being, and put back in any case; functions are copied."""
    with contextlib.ExitStack() as stack:
        yield _with(step, (), tensors, stack, set())


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
                if isinstance(tensor, Tensor):
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


def _with(value: Any, path: Path, tensors: Mapping[Path, Tensor], stack: contextlib.ExitStack, seen: set[int]) -> Any:
    if isinstance(value, Tensor):
        return tensors.get(path, value)
    if id(value) in seen or not isinstance(value, (nn.Module, MethodType, FunctionType)):
        return value
    seen.add(id(value))
    if isinstance(value, nn.Module):
        for home in _homes(value):
            for name, tensor in list(home.items()):
                other = tensors.get((*path, (".", name)))
                if isinstance(tensor, Tensor) and other is not None:
                    stack.callback(home.__setitem__, name, tensor)
                    home[name] = other
        for name, module in value._modules.items():
            _with(module, (*path, (".", name)), tensors, stack, seen)
        return value
    if isinstance(value, MethodType):
        _with(value.__self__, (*path, (".", "__self__")), tensors, stack, seen)
        return MethodType(_with(value.__func__, (*path, (".", "__func__")), tensors, stack, seen), value.__self__)
    return _copy(value, path, tensors, stack, seen)


def _copy(function: FunctionType, path: Path, tensors: Mapping[Path, Tensor], stack: contextlib.ExitStack, seen: set[int]) -> FunctionType:
    free = {name: _with(content, (*path, ("free", name)), tensors, stack, seen) for name, content in _free(function).items()}
    read = {name: _with(content, (*path, ("global", name)), tensors, stack, seen) for name, content in _globals(function).items()}
    cells = tuple(
        CellType(free[name]) if name in free else cell for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    names = {**function.__globals__, **read} if any(isinstance(content, Tensor) for content in read.values()) else function.__globals__
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells or None)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _homes(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module keeps tensors: parameters, buffers, plain attributes."""
    return module._parameters, module._buffers, module.__dict__


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
