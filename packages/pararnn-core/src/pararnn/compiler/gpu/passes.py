"""A pass over the steps of one sequence, or of many intervals side by side, as lines of a kernel.

Rows are read `ahead` steps before they are needed: the registers that a step has used up are filled with the row that many steps on.
"""

from __future__ import annotations

from dataclasses import dataclass

from pararnn.compiler.gpu.forward_subject import Forward, Function

# States have met where what is between them cannot grow beyond so many tolerances before the interval ends.
MET = 0.125


@dataclass(frozen=True)
class Pass:
    """What is done at each step.

    Attributes:
        subject: the program.
        ahead: rows that are read before they are needed.
        shape: of the states in the kernel, as source text.
        slopes: whether the product of the slopes, and the growth of an error at the entry, are carried along.
        writes: whether the states are written.
        stores, loads: whether the kept number is stored, or read instead of the operands behind it.
        checked: steps after which the states are compared with those that the pass before has written, and 0 for no comparison. Where they have met,
            `met` is 1, and the rest of the interval stands as it is.
        regrows: whether the growth of an error since any step is carried along, besides that of one at the entry.
    """

    subject: Forward
    ahead: int
    shape: str
    slopes: bool = False
    writes: bool = False
    stores: bool = False
    loads: bool = False
    checked: int = 0
    regrows: bool = False

    @property
    def function(self) -> Function:
        """The form of the step."""
        return self.subject.functions[("advance" if self.slopes else "following") + ("_kept" if self.loads or self.stores else "")]

    @property
    def reads(self) -> tuple[int, ...]:
        """The timed operands that are read."""
        making = self.subject.functions["keep"].reads if self.stores else ()
        return tuple(sorted({*self.function.reads, *making}))

    @property
    def moves(self) -> list[tuple[str, str]]:
        """The pointers that move with the steps, each with its time stride."""
        written = [("out", "STATE")] if self.writes or self.stores or self.loads else []
        return [*((f"o{index}", f"O{index}_TIME") for index in self.reads), *written]

    def read(self, slot: int, forward: int, known: str) -> list[str]:
        """Read the row `forward` steps on into the registers of `slot`. What is not `known` is whatever lies in them."""
        text = []
        for index in self.reads:
            mask = f"inside & {known}" if self.subject.is_element(index) else known
            text.append(f"x{index}_{slot} = tl.load(o{index}_at + {forward} * O{index}_TIME, mask={mask})")
        if self.loads:
            text.append(f"kept_{slot} = tl.load(out_at + {forward} * STATE, mask=inside & {known})")
        return text

    def now(self, slot: int) -> list[str]:
        """One step with what was read into the registers of `slot`."""
        function, suffix = self.function, f"_{slot}"
        text = [f"known = at + {slot} < length"] if self.slopes or self.writes or self.stores else []
        if self.stores:
            text += [
                f"kept{suffix} = tl.broadcast_to({self.subject.functions['keep'].call('', suffix)}, {self.shape})",
                f"tl.store(out_at + {slot} * STATE, kept{suffix}, mask=inside & known)",
            ]
        call = function.call("state", suffix)
        if self.slopes:
            text += [
                f"following_state, rate = {call}",
                "product = tl.where(known, product * rate, product)",
                "growth = tl.maximum(growth, tl.abs(product))",
            ]
            if self.regrows:
                text += ["since = tl.maximum(tl.where(known, since * tl.abs(rate), 0.0), 1.0)", "regrowth = tl.maximum(regrowth, since)"]
        else:
            text.append(f"following_state = {call}")
        text.append(f"state = tl.broadcast_to(following_state, {self.shape})")
        if self.writes:
            text.append(f"tl.store(out_at + {slot} * STATE, state.to(out_at.dtype.element_ty), mask=inside & known)")
        return text

    def lines(self, first: str, steps: str) -> list[str]:
        """Go through `steps` steps from `first` (of each interval) on, from `state`."""
        text = []
        if self.slopes:
            text += [f"product = tl.full({self.shape}, 1.0, CARRY)", f"growth = tl.full({self.shape}, 1.0, CARRY)"]
        if self.regrows:
            text += [f"since = tl.full({self.shape}, 1.0, CARRY)", "regrowth = since"]
        if not self.checked:
            return [*text, *self._run(first, steps, "length")]
        return [
            *text,
            "met = 0",
            f"for begun in range(0, {steps}, {self.checked}):",
            "    stop = tl.where(met == 0, length, 0)",
            f"    there = {first} + begun + {self.checked - 1}",
            "    former = tl.load(out + there.to(tl.int64) * STATE, mask=inside & (there < stop), other=0.0)",
            *(f"    {line}" for line in self._run(f"{first} + begun", f"tl.where(met == 0, {self.checked}, 0)", "stop")),
            f"    bound = (ABSOLUTE + RELATIVE * tl.abs(state)) * {MET}",
            "    apart = exists & (there < length) & (((tl.abs(state - former) * regrown) <= bound) == 0)",
            "    met = tl.maximum(met, 1 - tl.max(tl.max(apart.to(tl.int32), 1), 0))",
        ]

    def _run(self, first: str, steps: str, stop: str) -> list[str]:
        """The steps of `lines`; nothing is read at `stop` and after."""
        ahead = self.ahead
        text = [f"steps = {steps}", f"at = {first}", *(f"{name}_at = {name} + at.to(tl.int64) * {stride}" for name, stride in self.moves)]
        for slot in range(ahead):
            text += [f"known = at + {slot} < {stop}", *self.read(slot, slot, "known")]
        body = [f"last = tl.where(done + {ahead} < steps, length, 0)"]
        for slot in range(ahead):
            body += [*self.now(slot), f"later = at + {ahead + slot} < last", *self.read(slot, ahead + slot, "later")]
        body += [f"at += {ahead}", *(f"{name}_at += {ahead} * {stride}" for name, stride in self.moves)]
        return [*text, f"for done in range(0, steps, {ahead}):", *(f"    {line}" for line in body)]
