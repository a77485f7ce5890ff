"""What a step can see besides tensors, as plain facts that can be compared from one solve to the next.

Facts are a flat list: types and values of what is plain, addresses of functions' code, classes and modules. What an address stands for is held, so
that no other object takes it. A value that cannot be told apart from a changed one adds a token that equals nothing.
"""

from __future__ import annotations

import enum
import functools
import math
import types
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = {type(None), int, bool, str, bytes, complex, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, type(Ellipsis)}
SEQUENCES = {tuple, list}
SETS = {set, frozenset}
BY_ADDRESS = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    enum.Enum,
    torch._ops.OpOverload,
)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
# Containers that keep what is no tensor as attributes, under names that no code mentions.
KEEPERS = (nn.ParameterList, nn.ParameterDict)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Hooks of all modules of the process: the very dictionaries, which PyTorch never replaces.
EVERYWHERE = tuple(getattr(torch.nn.modules.module, f"_global{hooks}") for hooks in HOOKS)
# Much more than this is no setting of a cell; looking at it at every solve would take longer than the solve.
MOST = 2000


class Facts:
    """Facts of values, in the order in which they were added.

    Args:
        names: the attributes of modules that matter, None for all.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        self.facts: list[Any] = []
        self.held: list[Any] = []
        # Functions, classes and objects whose code may read attributes.
        self.code: list[Any] = []
        self.is_unsure = False
        self._names = names
        self._seen: dict[int, int] = {}

    def add(self, value: Any) -> None:
        """The facts of `value`; of a tensor its form, because what it holds is an operand or cannot be read."""
        kind = type(value)
        if kind is float:
            self.facts += (kind, value if value and not math.isnan(value) else repr(value))
        elif kind in PLAIN:
            self.facts += (kind, value)
        elif kind is Tensor or kind is nn.Parameter:
            self.facts += (value.shape, value.dtype, value.device)
        elif not self._is_new(value):
            return
        elif kind in SEQUENCES:
            self._several(kind, value)
        elif kind is dict or kind in SETS:
            self._several(kind, [part for item in value.items() for part in item] if kind is dict else sorted(value, key=repr))
        elif kind is types.FunctionType:
            self.function(value)
        elif kind is types.MethodType:
            self.add(value.__func__)
            self.add(value.__self__)
        elif isinstance(value, nn.Module):
            self.module(value)
        elif kind is functools.partial:
            self._several(kind, (value.func, value.args, value.keywords, vars(value)))
        elif isinstance(value, BY_ADDRESS):
            self._by_address(value)
            self.code.append(value)
            if (container := container_of(value)) is not None:
                self.add(container)
        elif isinstance(value, Tensor):
            self.facts += (value.shape, value.dtype, value.device)
        elif not _is_open(kind):
            self.unsure()
        else:
            self._by_address(kind)
            self.code.append(kind)
            self._several(kind, [part for item in vars(value).items() for part in item])

    def function(self, function: types.FunctionType) -> None:
        """Code, free variables and defaults of a function; tensors among them are operands."""
        self._by_address(function.__code__)
        self._by_address(function.__globals__)
        self.code.append(function)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                content = None
            self.add(content)
        for value in function.__defaults__ or ():
            self.add(value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.facts.append(name)
            self.add(value)
        for name in self._read(vars(function)):
            self.facts.append(name)
            self.add(vars(function)[name])

    def module(self, module: nn.Module) -> None:
        """Class, mode and attributes of a module, and of the modules inside that the names reach."""
        kind = type(module)
        own = module.__dict__
        self._by_address(kind)
        self.code.append(kind)
        self.facts.append(module.training)
        names = self._names
        is_open = names is None or isinstance(module, CONTAINERS)
        for home in (module._parameters, module._buffers):
            for name, tensor in home.items():
                if is_open or name in names:  # type: ignore[operator]
                    self.facts += (name, None) if tensor is None else (name, tensor.shape, tensor.dtype, tensor.device)
        for name in own if isinstance(module, KEEPERS) else self._read(own):
            if name not in INTERNAL:
                self.facts.append(name)
                self.add(own[name])
        for name, inner in module._modules.items():
            if is_open or name in names:  # type: ignore[operator]
                self.facts.append(name)
                self.add(inner)
        for hooks in HOOKS:
            if own[hooks]:
                self.facts.append(hooks)
                self._several(tuple, own[hooks].values())

    def everywhere(self) -> None:
        """Hooks that are called for each module."""
        if any(EVERYWHERE):
            for hooks in EVERYWHERE:
                self._several(tuple, hooks.values())

    def unsure(self) -> None:
        """Note that something cannot be told apart from a changed one."""
        self.facts.append(object())
        self.is_unsure = True

    def _read(self, own: dict[str, Any]) -> Collection[str]:
        """The names of attributes that matter, in an order that is always the same."""
        return own if self._names is None else sorted(self._names.intersection(own)) if own else ()

    def _is_new(self, value: Any) -> bool:
        place = self._seen.setdefault(id(value), len(self._seen))
        if place != len(self._seen) - 1 or len(self._seen) > MOST:
            if len(self._seen) > MOST:
                self.unsure()
            else:
                self.facts += ("seen", place)
            return False
        return True

    def _several(self, kind: type, values: Collection[Any]) -> None:
        self.facts += (kind, len(values))
        for value in values:
            self.add(value)

    def _by_address(self, value: Any) -> None:
        self.facts.append(id(value))
        self.held.append(value)


INTERNAL = frozenset(nn.Module().__dict__)


def container_of(value: Any) -> Any:
    """The dict, list or set that a builtin function belongs to and reads, such as the table of `table.get`; None for any other value."""
    owner = value.__self__ if type(value) is types.BuiltinFunctionType else None
    return owner if type(owner) in (dict, list, set) else None


def _is_open(kind: type) -> bool:
    """Whether all that an object of `kind` holds is in its `__dict__`."""
    bases = kind.__mro__[:-1]
    is_plain = all(base.__flags__ & _HEAP and not _slots(base) for base in bases) and hasattr(kind, "__dict__") and kind.__dictoffset__ != 0
    # Some classes written in C pass for ones written in Python, but that they have room for more.
    return is_plain and kind.__basicsize__ <= _Plain.__basicsize__


def _slots(kind: type) -> bool:
    return bool(set(vars(kind).get("__slots__", ())) - {"__dict__", "__weakref__"})


# Classes written in Python, and most that are written in C.
_HEAP = 1 << 9


class _Plain:
    """The size of an object that has nothing but its `__dict__`."""
