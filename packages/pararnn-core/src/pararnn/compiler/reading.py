"""What a step reads besides its arguments: names of attributes, and the globals and class members behind them.

Which functions a step enters (`entering`) can only depend on what these read, so as long as all of that is the same, the step does the same.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pararnn.compiler.entering import Entered, is_foreign
from pararnn.compiler.freezing import PLAIN, Facts, container_of

# Whoever uses these can reach attributes by names that are made while it runs.
_BY_STRING = """
getattr vars __dict__ eval exec globals locals attrgetter methodcaller __getattribute__ __getattr__ named_parameters parameters modules children
named_modules named_children named_buffers buffers _modules _parameters _buffers state_dict get_submodule get_parameter get_buffer
"""
BY_STRING = frozenset(_BY_STRING.split())
# What Python and PyTorch call where no code mentions it: of modules, which can have it as an attribute of their own, and of classes.
CALLED = frozenset(("forward", "_call_impl"))
_OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_SPECIAL = """
call get getattr getattribute getitem setitem delitem contains missing len iter next reversed enter exit bool float int complex index round trunc
floor ceil neg pos abs invert eq ne lt le gt ge torch_function torch_dispatch
"""
IMPLICIT = CALLED.union(
    ("backward", "setup_context", "jvp", "vjp", "vmap", "_wrapped_call_impl"),
    (f"__{name}__" for name in _SPECIAL.split()),
    (f"__{kind}{name}__" for name in _OPERATORS.split() for kind in ("", "r", "i")),
)
MISSING = object()


class Reading:
    """What functions can read, of objects whose classes are `classes`.

    Attributes:
        names: the attributes that can matter, None where any can.
        closures: functions that hold more than their code.
        content: what was found, to tell whether two readings are the same.
    """

    def __init__(self, entered: Iterable[Entered], classes: Iterable[type]) -> None:
        entered = list(entered)
        own = [one for one in entered if not is_foreign(one.module)]
        mentioned = frozenset[str]().union(*(one.names for one in entered))
        self._all_names = mentioned | IMPLICIT
        self.names = None if any(one.names & BY_STRING for one in own) else mentioned | CALLED
        self._watched: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self._changing: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = {}
        self._sizes: dict[int, tuple[Mapping[str, Any], int]] = {}
        for one in own:
            self._mentioned(one)
        for kind in classes:
            self._inside(kind)
        watched = [(home, name, value) for home, name, value in self._watched.values()]
        functions = [function for _, _, value in watched if (function := _function_of(value)) is not None]
        addresses = [part for (home, name), (_, _, value) in self._watched.items() for part in (home, name, id(value))]
        self.content = (*addresses, *self._changing, *(id(function.__code__) for function in functions), self.names)
        self._functions = tuple((function, function.__code__) for function in functions)
        self.closures = tuple(one for one in functions if one.__closure__ or one.__defaults__ or one.__kwdefaults__ or self._is_read(vars(one)))
        # What is watched is looked up at every solve.
        self._checks = tuple((home.get, name, value) for home, name, value in watched)
        self._counts = tuple(self._sizes.values())

    def is_current(self) -> bool:
        """Whether everything is still what it was found to be."""
        for get, name, value in self._checks:
            if get(name, MISSING) is not value:
                return False
        for function, code in self._functions:
            if function.__code__ is not code:
                return False
        return all(len(home) == size for home, size in self._counts)

    def changing(self, facts: Facts) -> None:
        """Add the facts of globals and class members that can change without being replaced."""
        for home, name in self._changing.values():
            facts.add(home.get(name))
        for function in self.closures:
            facts.add(function)

    def places(self) -> list[tuple[Mapping[str, Any], str]]:
        """Where these globals and class members are."""
        return list(self._changing.values())

    def _is_read(self, own: Mapping[str, Any]) -> bool:
        return bool(own) and (self.names is None or not self.names.isdisjoint(own))

    def _mentioned(self, function: Entered) -> None:
        for name in sorted(function.names):
            if name in function.home:
                self._member(id(function.home), function.home, name)
            elif isinstance(sys.modules.get(name), types.ModuleType):
                self._inside(sys.modules[name])

    def _inside(self, value: types.ModuleType | type) -> None:
        """Members of a class or module by the names that are read."""
        for home in value.__mro__ if isinstance(value, type) else (value,):
            members = vars(home)
            if is_foreign(home.__module__ if isinstance(home, type) else home.__name__):
                continue
            if isinstance(home, type):
                # A member that is added may hide one of a base.
                self._sizes[id(home)] = (members, len(members))
            for name in sorted(self._all_names & members.keys()):
                self._member(id(home), members, name)
            if isinstance(home, type) and issubclass(home, torch.autograd.Function):
                # Its derivative runs in a thread of the device, where nobody sees what is entered.
                for member in members.values():
                    function = _function_of(member)
                    if function is not None:
                        self._mentioned(Entered(function.__code__, function.__globals__))

    def _member(self, address: int, home: Mapping[str, Any], name: str) -> None:
        key = (address, name)
        if key in self._watched or key in self._changing:
            return
        value = home[name]
        is_fixed = type(value) in PLAIN or type(value) is float or isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType))
        if (is_fixed or _is_plain_descriptor(value)) and container_of(value) is None:
            self._watched[key] = (home, name, value)
            if isinstance(value, (type, types.ModuleType)):
                self._inside(value)
        else:
            self._changing[key] = (home, name)


def classes_of(facts: Facts) -> list[type]:
    """The classes among what `facts` met."""
    return [value for value in facts.code if isinstance(value, type)]


def _function_of(member: Any) -> types.FunctionType | None:
    """The function behind a member: a method of any kind, or what a property calls."""
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return function if isinstance(function, types.FunctionType) else None


def _is_plain_descriptor(value: Any) -> bool:
    """Whether a member is a function, a method, a property or the like; a descriptor whose `__get__` is written in Python may have settings."""
    if isinstance(value, (property, classmethod, staticmethod)):
        return True
    kind = type(value)
    return hasattr(kind, "__get__") and (is_foreign(kind.__module__) or not isinstance(kind.__get__, types.FunctionType))
