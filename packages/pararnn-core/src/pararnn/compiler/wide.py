"""What operations do to tensors that hold several numbers a channel side by side: each part is a number as any other, found by its place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pararnn.compiler.activations import LOWERINGS
from pararnn.compiler.labels import ANY, CHANNEL, CUT, PART, ROW, Axes, MixedError, blank, distinct, merged, varies
from pararnn.compiler.numbers import BROKEN, Number, constant
from pararnn.compiler.standing import Parts
from pararnn.compiler.storages import shares, tensors_in
from pararnn.compiler.vocabulary import FILLED, JOINS, MOVES, PARTS, PUTS, RESHAPES
from pararnn.compiler.wording import called

if TYPE_CHECKING:
    from pararnn.compiler.recording import Recorder


class Wide:
    """The tensors of a recorder that hold several numbers a channel, by the memory that they share with their views."""

    def __init__(self, recorder: Recorder, axes: Axes) -> None:
        self._recorder, self._standing, self._axes = recorder, recorder.standing, axes

    def operands(self, name: str, names: Sequence[str], tensor: Tensor, *, timed: bool) -> None:
        """Let `tensor`, called `name`, stand for the operands `names` side by side."""
        axes = frozenset(("channels",) if self._axes.channels != 1 else ()) | frozenset(("rows",) if timed else ())
        with _disable_current_modes():
            self._hold(tensor, Parts([Number(name, axes=axes) for name in names], self._axes.side_by_side(tensor.shape, timed=timed)))
        self._standing.name(tensor, name)

    def number(self, tensor: Tensor) -> Number:
        """What a view that holds one number a channel stands for."""
        found = self._number_of(tensor)
        if found is None:
            self._recorder.refuse(f"a tensor of shape {self._axes.shown(tensor.shape)} with several numbers a channel stands where one is wanted")
        return BROKEN if found is None else found

    def _number_of(self, tensor: Tensor) -> Number | None:
        """The number of a view of several; None where it has more than one, and of other tensors."""
        held, key = self._standing.of(tensor), (tensor.shape, tensor.stride(), tensor.storage_offset())
        if not isinstance(held, Parts):
            return None
        if key not in held.singles:
            with _disable_current_modes():
                held.singles[key] = self._single(held.at(tensor), tensor.shape)
        return held.singles[key]

    def numbers(self, tensor: Tensor, count: int, *, timed: bool) -> list[Number]:
        """What the `count` parts of a gradient stand for, which lie as those of an operand do."""
        with _disable_current_modes():
            parts, own = self._of(tensor), self._axes.side_by_side(tensor.shape, timed=timed)
            fits = merged(parts.labels, own) is not None
            found = [torch.unique(parts.labels[..., PART][own[..., PART] == part]).tolist() for part in range(count)]
        return [parts.numbers[which[0]] if fits and len(which) == 1 else BROKEN for which in found]

    def concerns(self, plain: str, args: Sequence[Any], result: Any, *, in_place: bool) -> bool:
        """Whether an operation takes or makes what is followed here; what takes views of a single number, and makes no view, does not."""
        if plain in JOINS or plain in PUTS:
            return True
        if plain == "expand" and self._axes.of(result.shape) is None and self._axes.of(args[0].shape) is not None:
            return not self._standing.is_constant(args[:1]) and not self._standing.is_broken(args[:1])
        held = [tensor for tensor in tensors_in(args) if self._standing.has_parts(tensor)]
        if in_place or plain in RESHAPES or plain in MOVES or plain in PARTS:
            return bool(held)
        return plain not in FILLED and any(self._number_of(tensor) is None for tensor in held)

    def follow(self, func: Any, plain: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any, *, in_place: bool) -> None:
        """Note what `result` holds after an operation on such tensors, or an obstacle."""
        try:
            with _disable_current_modes():
                found = self._followed(func, plain, args, kwargs, result)
                if found is not None:
                    self._note(args[0], result, found, in_place=in_place)
        except MixedError as error:
            told = f"makes shape {self._axes.shown(result.shape)}" if isinstance(result, Tensor) else "takes parts"
            self._recorder.refuse(str(error) or f"{called(func)} {told}{self._recorder.where()}, where {self._axes}: it mixes channels")
            for tensor in tensors_in((result,)):
                self._standing.put(tensor, BROKEN)

    def _note(self, target: Tensor, result: Tensor, found: Parts, *, in_place: bool) -> None:
        single = self._single(found, result.shape)
        if in_place and isinstance(memory := self._standing.of(target), Parts):
            memory.write(target, self._by_size(found))
        elif single is not None:
            self._standing.put(result, single)
        else:
            self._hold(result, found)

    def _followed(self, func: Any, plain: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Parts | None:
        """What is new in memory, if anything."""
        if plain in RESHAPES or plain in MOVES or plain in PARTS:
            return self._moved(func, plain, args[0], result)
        if plain in JOINS:
            return self._joined(plain, args, kwargs, result)
        if plain in PUTS:
            return self._put(plain, args, kwargs, result)
        if plain == "sum":
            return self._summed(func, args, result)
        if plain == "zero":
            return Parts([constant(0.0)], blank(result.shape))
        if plain in ("copy", "fill"):
            return self._typed(self._of(args[1]).expanded(result.shape), result)
        if plain in LOWERINGS or plain == "convert_element_type":
            return self._pointwise(func, plain, args, kwargs, result)
        broken = self._recorder.unsupported(func, plain, args)
        for tensor in tensors_in((result,)):
            self._standing.put(tensor, broken)
        return None

    def _moved(self, func: Any, plain: str, source: Tensor, result: Any) -> Parts | None:
        before = self._of(source)
        if not self._standing.has_parts(source):
            self._hold(source, before)
        for tensor in tensors_in((result,)):
            shared = shares(tensor, (source,))
            taken = f"takes {self._axes.shown(tensor.shape)} of {self._axes.shown(source.shape)}"
            cut = f"{called(func)} {taken}{self._recorder.where()}, where {self._axes}: {CUT}"
            labels = self._settled(self._of(tensor).labels if shared else before.labels.reshape(*tensor.shape, 3), before.numbers, cut)
            if not shared:
                numbers = before.numbers
                if plain == "_to_copy":
                    numbers = [self._recorder.converted(number, source, tensor) for number in numbers]
                return Parts(numbers, labels)
        return None

    def _joined(self, plain: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> Parts:
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        numbers: list[Number] = []
        labels = []
        for found in map(self._of, args[0]):
            labels.append(self._by_size(found).shifted(len(numbers)))
            numbers += found.numbers
        put_together = torch.cat(labels, dim) if plain == "cat" else torch.stack(labels, dim)
        return self._typed(Parts(numbers, self._settled(put_together, numbers)), result)

    def _put(self, plain: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> Parts:
        """A part laid into zeros, as gradients of cuts are, or into another tensor."""
        if plain.endswith("_backward"):
            part, target = self._of(args[0]), Parts([constant(0.0)], blank(result.shape))
        else:
            part, target = self._of(args[1]), self._of(args[0])
        dim, *which = [*args[2:], *kwargs.values()] or [0]
        labels, dim = self._by_size(target).labels.clone(), dim % result.ndim
        view = labels.select(dim, which[0]) if plain.startswith("select") else labels[(*[slice(None)] * dim, slice(*which))]
        view.copy_(self._by_size(part).shifted(len(target.numbers)))
        numbers = [*target.numbers, *part.numbers]
        return self._typed(Parts(numbers, self._settled(labels, numbers)), result)

    def _summed(self, func: Any, args: Sequence[Any], result: Tensor) -> Parts:
        source, parts = args[0], self._of(args[0])
        parts = Parts(parts.numbers, self._settled(parts.labels, parts.numbers))
        dims = {dim % source.ndim for dim in (args[1] if len(args) > 1 and args[1] else range(source.ndim))}
        for dim in sorted(dims, reverse=True):
            if varies(parts.labels, CHANNEL, dim):
                size = self._axes.channels
                lanes = parts.labels.unflatten(dim, (source.shape[dim] // size, size))
                parts = self._without(func, Parts(parts.numbers, lanes), CHANNEL, dim + 1)
            elif varies(parts.labels, ROW, dim):
                parts = self._without(func, Parts(parts.numbers, parts.labels.unsqueeze(dim)), ROW, dim + 1)
            parts = self._added(parts, dim)
        return self._typed(Parts(parts.numbers, parts.labels.reshape(*result.shape, 3)), result)

    def _without(self, func: Any, parts: Parts, axis: int, dim: int) -> Parts:
        """Sums over rows or channels, which run along `dim`; it is gone then."""
        labels = parts.labels.select(dim, 0).clone()
        labels[..., axis] = ANY
        gone = frozenset(("rows" if axis == ROW else "channels",))
        return Parts([self._recorder.sum_over(func, number, gone) for number in parts.numbers], labels)

    def _added(self, parts: Parts, dim: int) -> Parts:
        """Sums of the parts that lie along `dim`; it is gone then."""
        columns, which = distinct(parts.labels[..., PART].movedim(dim, 0))
        labels = parts.labels.select(dim, 0).clone()
        labels[..., PART] = which
        return Parts([functools.reduce(self._recorder.builder.add, [parts.numbers[part] for part in column]) for column in columns], labels)

    def _pointwise(self, func: Any, plain: str, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> Parts | None:
        if not self._recorder.computes(func, args, result):
            self._standing.put(result, BROKEN)
            return None
        slots = [*args, *kwargs.values()]
        places = [place for place, slot in enumerate(slots) if isinstance(slot, Tensor)]
        found = [self._of(slots[place]).expanded(result.shape) for place in places]
        labels = functools.reduce(_met, [one.labels for one in found]).clone()
        columns, labels[..., PART] = distinct(torch.stack([one.labels[..., PART] for one in found]))
        numbers = []
        for column in columns:
            for place, one, part in zip(places, found, column, strict=True):
                slots[place] = one.numbers[part]
            named = dict(zip(kwargs, slots[len(args) :], strict=True))
            numbers.append(self._recorder.lowered(func, plain, slots[: len(args)], named, args, result))
        return Parts(numbers, self._settled(labels, numbers))

    def _settled(self, labels: Tensor, numbers: Sequence[Number], message: str = "") -> Tensor:
        """`labels` of whole parts, with no sum where what was summed over still runs."""
        settled = self._axes.settled(labels)
        if settled is None:
            raise MixedError(message)
        for part, number in enumerate(numbers):
            mine = settled[settled[..., PART] == part]
            running = {name for name, axis in (("rows", ROW), ("channels", CHANNEL)) if bool((mine[:, axis] != ANY).any())}
            if number.summed & running and not number.is_zero:
                raise MixedError(number.origin)
        return settled

    def _by_size(self, parts: Parts) -> Parts:
        settled = self._axes.settled(parts.labels)
        return parts if settled is None else Parts(parts.numbers, settled)

    def _typed(self, parts: Parts, result: Tensor) -> Parts:
        return Parts([self._recorder.typed(number, result) for number in parts.numbers], parts.labels)

    def _single(self, parts: Parts, shape: Sequence[int]) -> Number | None:
        """The one number that all of a tensor holds, where it has the shape of one."""
        which = torch.unique(parts.labels[..., PART]).tolist()
        fits = len(which) == 1 and self._axes.of(shape) is not None and self._axes.settled(parts.labels) is not None
        return parts.numbers[which[0]] if fits else None

    def _of(self, tensor: Any) -> Parts:
        """What a tensor holds."""
        if not isinstance(tensor, Tensor):
            return Parts([constant(tensor)], blank(()))
        held = self._standing.of(tensor)
        if isinstance(held, Parts):
            return held.at(tensor)
        number: Number = self._recorder.number(tensor)
        if number.value is None or number.is_constant or not number.axes:
            return Parts([number], blank(tensor.shape))
        labels = self._axes.settled(blank(tensor.shape)) if self._axes.of(tensor.shape) is not None else None
        if labels is None:
            raise MixedError
        return Parts([number], labels)

    def _hold(self, tensor: Tensor, parts: Parts) -> None:
        if not self._standing.put_parts(tensor, parts):
            raise MixedError


def _met(first: Tensor, second: Tensor) -> Tensor:
    found = merged(first, second)
    if found is None:
        raise MixedError
    return found
