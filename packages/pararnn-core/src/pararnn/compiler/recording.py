"""A dispatch mode that writes down what a step does to one number of one row and one channel.

Tensors have more rows than one, and another number of channels, so that the sizes in a shape tell which is which, and whatever mixes either shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode

from pararnn.compiler.activations import LOWERINGS
from pararnn.compiler.guarding import CannotGoOnError, line_of_the_step
from pararnn.compiler.labels import Axes
from pararnn.compiler.numbers import BROKEN, Builder, Number, constant, held
from pararnn.compiler.standing import Parts, Standing
from pararnn.compiler.storages import keeps_all, shares, short, tensors_in, the_number
from pararnn.compiler.vocabulary import FILLED, FILLED_WITH, KNOWN, MIXES, MOVES, PARTS, READS, RESHAPES, is_random
from pararnn.compiler.wide import Wide
from pararnn.compiler.wording import called, tensor_called


class Recorder(TorchDispatchMode):
    """Follows the tensors of one run of a step, and of its vector-Jacobian product, by the sizes in `axes`; the step computes in `dtype`."""

    def __init__(self, axes: Axes, dtype: torch.dtype) -> None:
        super().__init__()
        self.axes = axes
        self.dtype = dtype
        self.obstacles: dict[str, None] = {}
        self.builder = Builder(self.refuse, torch.finfo(dtype).eps)
        self.is_backward = False
        self.standing = Standing()
        self.wide = Wide(self, axes)

    def operand(self, name: str, tensor: Tensor) -> None:
        """Let `tensor` stand for the operand `name`."""
        self.standing.put(tensor, Number(name, axes=frozenset(self.axes.of(tensor.shape) or ())))
        self.standing.name(tensor, name)

    def refuse(self, obstacle: str) -> None:
        """Note an obstacle; one sentence."""
        self.obstacles[obstacle] = None

    def number(self, value: Any) -> Any:
        """What a tensor stands for; anything else is given back."""
        if not isinstance(value, Tensor):
            return value
        found = self.standing.of(value)
        if isinstance(found, Parts):
            return self.wide.number(value)
        if found is None:
            self.refuse(
                f"the step reads a tensor of shape {self.axes.shown(value.shape)}{self.where()} that is neither drive nor found by name as a "
                "parameter, buffer or attribute of the cell; pass it in the drive or register it as a buffer"
            )
        return found or BROKEN

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        in_place = func._schema.is_mutable and name.endswith("_")
        plain = name.removesuffix("_") if in_place else name
        if func.namespace == "prim":
            # Questions about a tensor, such as its device.
            return func(*args, **kwargs)
        if name in READS:
            return self._read(args)
        if plain not in KNOWN and plain not in MIXES and not in_place and not is_random(func):
            decomposed = self._decomposed(func, args, kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        lifted = the_number(args[0]) if plain.startswith("lift") else None
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            self.reads_numbers()
        is_wide = lifted is None and self.wide.concerns(plain, args, result, in_place=in_place)
        if is_wide:
            self.wide.follow(func, plain, args, kwargs, result, in_place=in_place)
        elif not isinstance(result, Tensor):
            self.unsupported(func, plain, args)
            for tensor in tensors_in((result,)):
                self.standing.put(tensor, BROKEN)
            return result
        number = BROKEN if is_wide else lifted or self._lowered(func, plain, args, kwargs, result)
        if in_place and (named := self.standing.name_of(args[0])) is not None:
            self.refuse(f"the step writes into its {tensor_called(named)} in place{self.where()}; it must be a pure function")
        if not is_wide and (plain in ("detach", "alias") or not shares(result, args) or in_place or lifted):
            self.standing.put(result, number)
        return result

    def _decomposed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result by smaller operations, which this mode follows; `NotImplemented` where PyTorch knows none."""
        before = dict(self.obstacles)
        with self:
            if func in decomposition_table:
                result = decomposition_table[func](*args, **kwargs)
                if len(self.obstacles) > len(before) and func.namespace != "prims":
                    # The reader wrote the whole, and is told of that instead of its parts.
                    self.obstacles = before
                    self.unsupported(func, func._schema.name.partition("::")[2], args)
                return result
            is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
            return func.decompose(*args, **kwargs) if is_composite else NotImplemented

    def _lowered(self, func: Any, plain: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Number:
        if plain in FILLED:
            return self.typed(constant(FILLED[plain]), result)
        if plain in FILLED_WITH:
            place = FILLED_WITH[plain]
            filled = self.number(args[place] if len(args) > place else kwargs.get("fill_value", kwargs.get("value")))
            return self.typed(filled if isinstance(filled, Number) else constant(filled), result)
        if plain == "view" and func._overloadname == "dtype":
            # The bits of a number as another.
            return self.unsupported(func, plain, args)
        if plain in RESHAPES or plain in MOVES or (plain in PARTS and keeps_all(plain, args[0], result)):
            return self._viewed(func, plain, args[0], result)
        if plain == "convert_element_type":
            return self.lowered(func, plain, [self.number(args[0])], {}, args, result)
        if plain == "sum":
            return self._summed(func, args[0], result)
        if plain not in LOWERINGS:
            return self.unsupported(func, plain, args)
        if not self._fits(func, args, result):
            return BROKEN
        numbers, named = [*map(self.number, args)], {key: self.number(value) for key, value in kwargs.items()}
        number = self.lowered(func, plain, numbers, named, args, result)
        if number.summed & set(self.axes.of(result.shape) or ()):
            self.refuse(number.origin)
            return BROKEN
        return number

    def lowered(self, func: Any, plain: str, numbers: Sequence[Any], named: dict[str, Any], args: Sequence[Any], result: Tensor) -> Number:
        """The number that a pointwise operation makes of others."""
        if plain == "convert_element_type":
            return self.converted(numbers[0], args[0], result)
        try:
            return self.typed(LOWERINGS[plain](self.builder, *numbers, **named), result)
        except (NotImplementedError, TypeError):
            return self.unsupported(func, plain, args)

    def typed(self, number: Number, result: Tensor) -> Number:
        """The number as one of the dtype of `result`."""
        if result.dtype == torch.bool:
            return self.builder.as_truth(number)
        number = self.builder.as_number(number)
        if not isinstance(number.value, float) or result.dtype == self.dtype or result.is_complex():
            return number
        return replace(number, value=held(number.value, result.dtype))

    def _fits(self, func: Any, args: tuple[Any, ...], result: Tensor) -> bool:
        """Whether a pointwise result has rows and channels at most once each, in a dtype that is computed in."""
        if not self.computes(func, args, result):
            return False
        if self.axes.of(result.shape) is None and not self.standing.is_broken(args):
            self.refuse(f"{called(func)} makes shape {self.axes.shown(result.shape)}{self.where()}, where {self.axes}: it mixes channels")
        return self.axes.of(result.shape) is not None

    def computes(self, func: Any, args: Sequence[Any], result: Tensor) -> bool:
        """Whether an operation computes in a dtype that kernels compute in."""
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        # Constants of 64 bits are exact in sums and products; those of fewer bits wrap, and bits are no truth values.
        is_exact = result.dtype == torch.int64 and self.standing.is_constant(tensors) and not func._schema.name.startswith("aten::bitwise")
        if result.dtype not in (self.dtype, torch.bool) and not is_exact:
            if not self.standing.is_broken(args):
                self.refuse(f"{called(func)} computes in {short(result.dtype)}, the states are {short(self.dtype)}{self.where()}")
            return self.standing.is_broken(args)
        whole = [tensor for tensor in tensors if not tensor.is_floating_point() and tensor.dtype != torch.bool]
        if whole and len(whole) == len(tensors) and not self.standing.is_constant(tensors):
            self.refuse(f"{called(func)} computes with integers{self.where()}; convert them to the dtype of the states in drive")
        return True

    def _viewed(self, func: Any, plain: str, source: Tensor | float, result: Tensor) -> Number:
        if not isinstance(source, Tensor):
            return self.typed(constant(source), result)
        number: Number = self.number(source)
        before, after = self.axes.of(source.shape), self.axes.of(result.shape)
        kept = before is not None and after is not None and (plain in MOVES or before == after)
        grown = not number.summed or set(before or ()) == set(after or ())
        if not (kept and grown) and not (number.value is None or number.is_constant):
            shapes = f"{self.axes.shown(source.shape)} to {self.axes.shown(result.shape)}"
            self.refuse(f"{called(func)} rearranges {shapes}{self.where()}, where {self.axes}: channels mix")
            return BROKEN
        return self.converted(number, source, result) if plain == "_to_copy" else number

    def converted(self, number: Number, source: Tensor, result: Tensor) -> Number:
        """The number of `source` in the dtype of `result`."""
        if number.value is None or number.is_constant or source.dtype == result.dtype:
            return self.typed(number, result)
        if result.dtype not in (self.dtype, torch.bool):
            self.refuse(f"the step converts {short(source.dtype)} to {short(result.dtype)}{self.where()}, the states are {short(self.dtype)}")
            return BROKEN
        return self.typed(number, result)

    def _summed(self, func: Any, source: Tensor, result: Tensor) -> Number:
        number: Number = self.number(source)
        before, after = self.axes.of(source.shape), self.axes.of(result.shape)
        if number.value is None:
            return number
        if before is None or after is None:
            return self.unsupported(func, "sum", (source,))
        gone = frozenset(before) - frozenset(after)
        return self.sum_over(func, number, gone) if gone else self.typed(number, result)

    def sum_over(self, func: Any, number: Number, gone: frozenset[str]) -> Number:
        """The sum of a number over rows or channels, which are left to be summed over."""
        what = " and ".join(sorted(gone)).replace("rows", "sequences")
        origin = f"{called(func)} mixes {what}{self.where()}: every channel of every sequence is computed on its own"
        return replace(number, axes=number.axes - gone, summed=number.summed | gone, origin=number.origin or origin)

    def _read(self, args: tuple[Any, ...]) -> Any:
        number = self.number(args[0])
        if isinstance(number, Number) and number.is_constant and len(args) == 1:
            return bool(number.value) if number.is_truth else number.value
        return self.reads_numbers()

    def reads_numbers(self) -> NoReturn:
        """Refuse a step that asks for the numbers of a tensor, and leave it."""
        self.refuse(
            f"the step reads the numbers of a tensor{self.where()}, as `if state.sum() > 0` and .item() do: what is computed must not "
            "depend on them; use torch.where"
        )
        raise CannotGoOnError

    def unsupported(self, func: Any, plain: str, args: Sequence[Any]) -> Number:
        """Refuse an operation for what it is."""
        if self.is_backward and self.standing.is_broken(args):
            return BROKEN
        if is_random(func):
            what = "draws random numbers"
        elif plain in MIXES:
            what = "mixes channels"
        elif plain in PARTS:
            what = "takes a part of the channels"
        else:
            what = "has no counterpart among the pointwise operations that can be compiled"
        self.refuse(f"{called(func)} {what}{self.where()}")
        return BROKEN

    def where(self) -> str:
        """File and line of the step, in parentheses; empty in its derivative."""
        return "" if self.is_backward else line_of_the_step()
