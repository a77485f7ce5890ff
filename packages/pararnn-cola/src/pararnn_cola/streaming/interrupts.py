"""Ctrl-C during a run: never in the middle of a step, so that what it leaves can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """While open, Ctrl-C waits for the end of the step in hand; between steps, or a second time, it interrupts at once.

    A handler that somebody else has installed stays, and so does everything outside the main thread, which no signal reaches.
    """

    def __init__(self) -> None:
        self.learning = False
        """whether a step is in hand, and the learner's state therefore in between"""
        self.waiting = False
        self._ours = False

    def __enter__(self) -> Self:
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._ours = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def step_done(self) -> None:
        """Say that the state is whole again; interrupts now if Ctrl-C came in between."""
        self.learning = False
        if self.waiting:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.learning and not self.waiting:
            self.waiting = True
            return
        raise KeyboardInterrupt
