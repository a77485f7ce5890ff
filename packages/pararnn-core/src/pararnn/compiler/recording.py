"""A dispatch mode that writes down what a step does to one number of one row and one channel.

Tensors have two rows (three where there are two channels), so that the sizes in a shape tell rows from channels, and whatever mixes either shows.
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
from pararnn.compiler.numbers import BROKEN, Builder, Number, constant
from pararnn.compiler.storages import keeps_all, shares, short, storage, the_number
from pararnn.compiler.vocabulary import FILLED, FILLED_WITH, KNOWN, MIXES, MOVES, PARTS, READS, RESHAPES, is_random


class Recorder(TorchDispatchMode):
    """Follows the tensors of one run of a step, and of its vector-Jacobian product.

    Args:
        rows: size of the rows.
        channels: size of the channels.
        dtype: in which the step computes.
    """

    def __init__(self, rows: int, channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = {rows: "rows"} | ({channels: "channels"} if channels != 1 else {})
        self.dtype = dtype
        self.obstacles: dict[str, None] = {}
        self.builder = Builder(self.refuse, torch.finfo(dtype).eps)
        self.is_backward = False
        self.read: set[str] = set()
        self._names: dict[int, str] = {}
        self._numbers: dict[int, Number] = {}
        self._alive: list[Tensor] = []

    def operand(self, name: str, tensor: Tensor) -> None:
        """Let `tensor` stand for the operand `name`."""
        self._put(tensor, Number(name, axes=frozenset(self._axes(tensor) or ())))
        self._names[storage(tensor)] = name

    def refuse(self, obstacle: str) -> None:
        """Note an obstacle; one sentence."""
        self.obstacles[obstacle] = None

    def breaks(self, tensor: Tensor) -> None:
        """Say no more of `tensor`, of which an obstacle told."""
        self._put(tensor, BROKEN)

    def number(self, value: Any) -> Any:
        """What a tensor stands for; anything else is given back."""
        if not isinstance(value, Tensor):
            return value
        place = storage(value)
        if place not in self._numbers:
            self.refuse(
                f"the step reads a tensor of shape {tuple(value.shape)}{self._where()} that is neither drive nor found by name as a parameter, "
                "buffer or attribute of the cell; pass it in the drive or register it as a buffer"
            )
            return BROKEN
        if place in self._names:
            self.read.add(self._names[place])
        return self._numbers[place]

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
        if not isinstance(result, Tensor):
            self._unsupported(func, plain, args)
            for tensor in result if isinstance(result, (tuple, list)) else ():
                if isinstance(tensor, Tensor):
                    self._put(tensor, BROKEN)
            return result
        number = lifted or self._lowered(func, plain, args, kwargs, result)
        if in_place and storage(args[0]) in self._names:
            self.refuse(f"the step writes into its {self._names[storage(args[0])]} in place{self._where()}; it must be a pure function")
        if plain in ("detach", "alias") or not shares(result, args) or in_place or lifted:
            self._put(result, number)
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
                    self._unsupported(func, func._schema.name.partition("::")[2], args)
                return result
            is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
            return func.decompose(*args, **kwargs) if is_composite else NotImplemented

    def _lowered(self, func: Any, plain: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Number:
        if plain in FILLED:
            return self._typed(constant(FILLED[plain]), result)
        if plain in FILLED_WITH:
            place = FILLED_WITH[plain]
            filled = self.number(args[place] if len(args) > place else kwargs.get("fill_value", kwargs.get("value")))
            return self._typed(filled if isinstance(filled, Number) else constant(filled), result)
        if plain in RESHAPES or plain in MOVES or (plain in PARTS and keeps_all(args[0], result)):
            return self._viewed(func, plain, args[0], result)
        if plain == "convert_element_type":
            return self._converted(self.number(args[0]), args[0], result)
        if plain == "sum":
            return self._summed(func, args[0], result)
        if plain not in LOWERINGS:
            return self._unsupported(func, plain, args)
        if not self._fits(func, args, result):
            return BROKEN
        try:
            number = LOWERINGS[plain](self.builder, *map(self.number, args), **{key: self.number(value) for key, value in kwargs.items()})
        except (NotImplementedError, TypeError):
            return self._unsupported(func, plain, args)
        if number.summed & set(self._axes(result) or ()):
            self.refuse(number.origin)
            return BROKEN
        return self._typed(number, result)

    def _typed(self, number: Number, result: Tensor) -> Number:
        return self.builder.as_truth(number) if result.dtype == torch.bool else self.builder.as_number(number)

    def _fits(self, func: Any, args: tuple[Any, ...], result: Tensor) -> bool:
        """Whether a pointwise result has rows and channels at most once each, in a dtype that is computed in."""
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if result.dtype not in (self.dtype, torch.bool) and not self._is_constant(tensors):
            if not self._is_broken(args):
                self.refuse(f"{func} computes in {short(result.dtype)}, the states are {short(self.dtype)}{self._where()}")
            return self._is_broken(args)
        whole = [tensor for tensor in tensors if not tensor.is_floating_point() and tensor.dtype != torch.bool]
        if whole and len(whole) == len(tensors) and not self._is_constant(tensors):
            self.refuse(f"{func} computes with integers{self._where()}; convert them to the dtype of the states in drive")
        if self._axes(result) is None:
            self.refuse(f"{func} makes shape {tuple(result.shape)}{self._where()}, where {self._sizes()}: it combines channels with others")
            return False
        return True

    def _viewed(self, func: Any, plain: str, source: Tensor | float, result: Tensor) -> Number:
        if not isinstance(source, Tensor):
            return self._typed(constant(source), result)
        number: Number = self.number(source)
        before, after = self._axes(source), self._axes(result)
        kept = before is not None and after is not None and (plain in MOVES or before == after)
        grown = not number.summed or set(before or ()) == set(after or ())
        if not (kept and grown) and not (number.value is None or number.is_constant):
            self.refuse(f"{func} rearranges {tuple(source.shape)} to {tuple(result.shape)}{self._where()}, where {self._sizes()}: channels mix")
            return BROKEN
        return self._converted(number, source, result) if plain == "_to_copy" else number

    def _converted(self, number: Number, source: Tensor, result: Tensor) -> Number:
        if number.value is None or number.is_constant or source.dtype == result.dtype:
            return self.builder.as_truth(number) if result.dtype == torch.bool else self.builder.as_number(number)
        if result.dtype not in (self.dtype, torch.bool):
            self.refuse(f"the step converts {short(source.dtype)} to {short(result.dtype)}{self._where()}, the states are {short(self.dtype)}")
            return BROKEN
        return self._typed(number, result)

    def _summed(self, func: Any, source: Tensor, result: Tensor) -> Number:
        number: Number = self.number(source)
        before, after = self._axes(source), self._axes(result)
        if number.value is None:
            return number
        if before is None or after is None:
            return self._unsupported(func, "sum", (source,))
        gone = frozenset(before) - frozenset(after)
        if not gone:
            return self._typed(number, result)
        what = " and ".join(sorted(gone)).replace("rows", "sequences")
        origin = f"{func} mixes {what}{self._where()}: every channel of every sequence is computed on its own"
        return replace(number, axes=number.axes - gone, summed=number.summed | gone, origin=number.origin or origin)

    def _read(self, args: tuple[Any, ...]) -> Any:
        number = self.number(args[0])
        if isinstance(number, Number) and number.is_constant and len(args) == 1:
            return bool(number.value) if number.is_truth else number.value
        return self.reads_numbers()

    def reads_numbers(self) -> NoReturn:
        """Refuse a step that asks for the numbers of a tensor, and leave it."""
        self.refuse(
            f"the step reads the numbers of a tensor{self._where()}, as `if state.sum() > 0` and .item() do: what is computed must not "
            "depend on them; use torch.where"
        )
        raise CannotGoOnError

    def _unsupported(self, func: Any, plain: str, args: Sequence[Any]) -> Number:
        if self.is_backward and self._is_broken(args):
            return BROKEN
        if is_random(func):
            what = "draws random numbers"
        elif plain in MIXES:
            what = "mixes channels"
        elif plain in PARTS:
            what = "takes a part of the channels"
        else:
            what = "has no counterpart among the pointwise operations that can be compiled"
        self.refuse(f"{func} {what}{self._where()}")
        return BROKEN

    def _is_constant(self, tensors: Sequence[Tensor]) -> bool:
        numbers = [self._numbers.get(storage(tensor)) for tensor in tensors]
        return all(number is not None and number.is_constant for number in numbers)

    def _is_broken(self, args: Sequence[Any]) -> bool:
        return any(isinstance(arg, Tensor) and self._numbers.get(storage(arg)) is BROKEN for arg in args)

    def _axes(self, tensor: Tensor) -> tuple[str, ...] | None:
        """The axes that a shape has, in order; None where it has one twice or a size that is neither."""
        sizes = [size for size in tensor.shape if size != 1]
        if len(set(sizes)) < len(sizes) or not set(sizes) <= set(self.sizes):
            return None
        return tuple(self.sizes[size] for size in sizes)

    def _sizes(self) -> str:
        return " and ".join(f"{size} is the number of {axis}" for size, axis in self.sizes.items())

    def _put(self, tensor: Tensor, number: Number) -> None:
        self._numbers[storage(tensor)] = number
        # Storages are known by their address, which must not be given to another while the step is followed.
        self._alive.append(tensor)

    def _where(self) -> str:
        return "" if self.is_backward else line_of_the_step()
