"""A run saved in the middle of its stream: written in one piece or not at all, and read back before anything is changed."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

from pararnn.errors import ConfigError
from pararnn_cola.errors import StreamError
from pararnn_cola.learners.base import Learner
from pararnn_cola.streaming.report import LossLog
from pararnn_cola.streaming.sources import Position, Source

FORMAT = "pararnn-cola run 1"


class RunFile:
    """The file of a run, at `path`.

    Raises:
        ConfigError: the folder does not exist, which is better known now than when the first checkpoint is due.
    """

    def __init__(self, path: str | os.PathLike[str], source: Source) -> None:
        self.path, self.source = Path(path), source
        if not self.path.parent.is_dir():
            raise ConfigError(f"checkpoint={os.fspath(path)!r}: the folder {self.path.parent} does not exist; make it first", path=os.fspath(path))

    def write(self, learner: Learner, position: Position, losses: LossLog) -> None:
        """Save all that is needed to go on; the file of before stays until the new one is whole."""
        content = {
            "format": FORMAT,
            "source": self.source.describe(),
            "position": tuple(position),
            "losses": losses.state_dict(),
            "learner": learner.state_dict(),
        }
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".part", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def resume(self, learner: Learner, losses: LossLog) -> Position:
        """Bring `learner` and `losses` to where the file's run stood, and give its position; the start where there is no file.

        Raises:
            StreamError: the file is broken, or of another rule, network or kind of data; nothing has changed then.
        """
        if not self.path.exists():
            return Position()
        content = self._read()
        if content["source"] != self.source.describe():
            raise StreamError(f"{self.path} was written in a run over {content['source']}, these data are {self.source.describe()}")
        before = learner.state_dict()
        try:
            learner.load_state_dict(content["learner"])
            losses.load_state_dict(content["losses"])
            return Position(*content["position"])
        except StreamError as error:
            raise StreamError(f"{self.path}: {error}", **error.data) from error
        except Exception as error:
            learner.load_state_dict(before)
            raise StreamError(f"{self.path} does not fit this learner ({error}); build it as the one that was saved, or pass resume=False") from error

    def _read(self) -> dict[str, Any]:
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise StreamError(f"{self.path} is no readable checkpoint ({type(error).__name__}: {reason}); remove it or pass resume=False") from error
        parts = {"source", "position", "losses", "learner"}
        if not isinstance(content, dict) or content.get("format") != FORMAT or not parts <= content.keys():
            raise StreamError(f"{self.path} is a file of torch, but no checkpoint of train; give another path or pass resume=False")
        return content
