"""Rules that backpropagate through a window of the stream.

Either the graph of the window is kept alive as steps come, or the window is run again under autograd when its losses are due. In both cases the
window is a list of records, so a checkpoint in the middle of it holds values only, and the graph is made again when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.delivery import add_gradients, covered, refuse_strays
from pararnn_cola.learners.recorded import Recorded, advance_apart, detached, judge, zero_rows
from pararnn_cola.learners.records import check_records, packed_by_step
from pararnn_cola.learners.result import StepResult
from pararnn_cola.learners.rows import Rows
from pararnn_cola.learners.surroundings import keeps_state
from pararnn_cola.network import Network, States


class WindowLearner(Learner):
    """The window; a subclass sets how long it is.

    Attributes:
        live: whether the graph is kept as steps come; otherwise steps stay recorded once their losses are delivered, and the window is run again.
        records: the steps of the window, oldest first.
        owed: how many of them, the latest, have losses that are not in `.grad` yet.
    """

    live: bool = True

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.records: list[Recorded] = []
        self.owed = 0
        self._reset: Tensor | None = None
        # The end of the live graph, and its outputs with the gradients of the losses by them.
        self._tip: States | None = None
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self._shown: States | None = None
        self._versions: tuple[int, ...] = ()
        self._trained: tuple[bool, ...] = ()

    def _check_coverage(self) -> None:
        super()._check_coverage()
        refuse_strays(type(self).__name__, self.network)

    def _learn(self, u: Tensor, target: Tensor | None, rows: Rows, signals: bool) -> StepResult:
        self._notice_states()
        self._check_versions()
        states = self._tip or self.states or ()
        record = Recorded.of(u, target, rows, self._reset, self.states if not self.live or not self.records else None)
        with torch.set_grad_enabled(self.live):
            top, following = advance_apart(self.network, record.inputs, states, record.rows.present)
            output = self.network.readout(top)
        loss = None
        if record.target is not None:
            loss, error = judge(self.loss, output, record.target, record.rows)
            self._finite(loss, u, output if isinstance(rows.live, Tensor) else None)
            # What an optimizer has used goes now, not when the window ends, so that a checkpoint between the two does not take it for new.
            self.buffers.open()
            self.buffers.close()
            if self.live:
                self._outputs.append((output, error))
        if self.live:
            self._tip = following
            if not self._versions:
                self._versions, self._trained = self._present_versions(), self._present_trained()
        self.records.append(record)
        self._reset = None
        self.owed += 1
        self.states = self._shown = detached(following)
        return StepResult(output.detach(), loss)

    @property
    def _foreign(self) -> bool:
        """Whether somebody has put other states in since the last step: what was recorded does not lead up to them."""
        return self.states is not None and self.states is not self._shown

    def _notice_states(self) -> None:
        """End the window where other states begin."""
        if self._foreign:
            self.flush()
            self._drop()
            self._shown = self.states

    def reset(self, rows: Tensor | None = None, *, statistics: bool = False) -> None:
        self._notice_states()
        super().reset(rows, statistics=statistics)

    @keeps_state
    def flush(self) -> None:
        """Send the losses that are owed back through the window, add what arrives to `.grad`, and drop the graph; values stay."""
        self._check_versions()
        if any(record.target is not None for record in self.records[len(self.records) - self.owed :]):
            if not self.live:
                self._outputs, _ = self._replay()
            self._deliver(self._outputs)
        self.owed, self._tip, self._outputs, self._versions = 0, None, [], ()
        if self.live:
            self.records, self._reset = [], None

    def _deliver(self, outputs: Sequence[tuple[Tensor, Tensor]]) -> None:
        named = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        reached: Sequence[Tensor | None] = [None] * len(named)
        if outputs[0][0].requires_grad:
            answers, errors = zip(*outputs, strict=True)
            reached = torch.autograd.grad(answers, list(named.values()), errors, allow_unused=True)
        add_gradients(self.buffers, dict(zip(named.values(), covered(type(self).__name__, list(named), reached), strict=True)))

    @torch.enable_grad()
    def _replay(self) -> tuple[list[tuple[Tensor, Tensor]], States]:
        """The owed outputs of the window with the gradients by them, and its last states, in a new graph."""
        states, outputs = self.records[0].before or (), []
        for index, record in enumerate(self.records):
            if index and record.reset is not None:
                states = zero_rows(self.network, states, record.reset, self.batch)
            top, states = advance_apart(self.network, record.inputs, states, record.rows.present)
            if record.target is not None and index >= len(self.records) - self.owed:
                output = self.network.readout(top)
                outputs.append((output, judge(self.loss, output, record.target, record.rows)[1]))
        return outputs, states

    def _drop(self) -> None:
        self.records, self.owed, self._reset, self._tip, self._outputs, self._versions = [], 0, None, None, [], ()

    def _forget(self, rows: Tensor | None) -> None:
        if rows is None:
            self._drop()
        elif self.records:
            rows = rows.clone()
            self._reset = rows if self._reset is None else self._reset | rows
            if self._tip is not None:
                with torch.enable_grad():
                    self._tip = zero_rows(self.network, self._tip, rows, self.batch)
        self._shown = self.states

    def _present_versions(self) -> tuple[int, ...]:
        return tuple(parameter._version for parameter in self.network.parameters())

    def _present_trained(self) -> tuple[bool, ...]:
        return tuple(parameter.requires_grad for parameter in self.network.parameters())

    def _check_versions(self) -> None:
        """See whether somebody moved the weights without `flush`, or froze some or unfroze them.

        A graph whose weights have moved gives wrong gradients, or none; it knows nothing of a weight that was frozen when it grew.
        """
        if self._versions and self._versions != self._present_versions():
            count = self.owed
            self._drop()
            raise StreamError(
                f"the weights moved while the last {count} steps waited to be sent back, so their losses are lost; call flush() before an optimizer "
                "of your own, or apply(), which does both. The next step begins a new window",
                steps=count,
            )
        if self._versions and self._trained != self._present_trained():
            self._regrow()

    def _memory(self) -> dict[str, Tensor]:
        named = {f"{index}.{name}": tensor for index, record in enumerate(self.records) for name, tensor in record.pack().items()}
        named["owed"] = torch.tensor(self.owed, device="cpu")
        if self._reset is not None:
            named["reset"] = self._reset
        if self._foreign:
            named["foreign"] = torch.tensor(True, device="cpu")
        return named

    def _check_memory(self, memory: dict[str, Tensor], batch: tuple[int, ...]) -> None:
        check_records(self.network, memory, batch, live=self.live)

    def _recall(self, memory: dict[str, Tensor]) -> None:
        self._drop()
        self.records = [Recorded.unpack(packed) for packed in packed_by_step(memory)]
        self.owed, self._reset, self._shown = int(memory["owed"]), memory.get("reset"), None if "foreign" in memory else self.states
        self._regrow()

    def _regrow(self) -> None:
        """Make the live graph anew, from the records."""
        if self.live and self.records:
            self._outputs, self._tip = self._replay()
            self._versions, self._trained = self._present_versions(), self._present_trained()
            if self._reset is not None:
                with torch.enable_grad():
                    self._tip = zero_rows(self.network, self._tip, self._reset, self.batch)

    def __getstate__(self) -> dict[str, Any]:
        # A graph can be neither copied nor pickled.
        return super().__getstate__() | {"_tip": None, "_outputs": [], "_versions": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._regrow()
