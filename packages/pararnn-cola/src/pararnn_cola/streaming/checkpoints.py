"""A run saved in the middle of its stream: written in one piece or not at all, and read back before anything is changed."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pararnn.errors import ConfigError, sentence
from pararnn_cola.errors import StreamError
from pararnn_cola.learners.base import Learner
from pararnn_cola.streaming.digest import digest_of
from pararnn_cola.streaming.report import LossLog
from pararnn_cola.streaming.sources import Position, Source

FORMAT = "pararnn-cola run 2"
PARTS = ("source", "position", "losses", "learner")


class Saved(NamedTuple):
    """What a file holds, looked at as far as that can be done without the learner."""

    position: Position
    losses: LossLog
    learner: dict[str, Any]


class RunFile:
    """The file of a run, at `path`; a symbolic link is followed.

    Raises:
        ConfigError: nothing can be written there, which is better known now than when the first checkpoint is due.
    """

    def __init__(self, path: str | os.PathLike[str], source: Source) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise ConfigError(f"checkpoint={path!r} is no path; give the name of a file, such as 'run.pt'", checkpoint=path)
        self.name, self.source = os.fspath(path), source
        try:
            self.path = Path(os.path.realpath(path))
            if not self.path.parent.is_dir():
                raise ConfigError(f"checkpoint={self.name!r}: the folder {self.path.parent} does not exist; make it first", path=self.name)
            if not self.name or self.path.is_symlink() or (self._present() and not self.path.is_file()):
                raise ConfigError(f"checkpoint={self.name!r} is no file, but a folder or a device; give the name of a file", path=self.name)
            temporary = self._temporary()
            temporary.open("xb").close()
            temporary.unlink()
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"checkpoint={self.name!r} cannot be written ({error}); give another path", path=self.name) from error
        self.description = source.describe()

    def write(self, learner: Learner, position: Position, losses: LossLog) -> None:
        """Save all that is needed to go on; the file of before stays until the new one is whole."""
        content = {"source": self.description, "position": tuple(position), "losses": losses.state_dict(), "learner": learner.state_dict()}
        content = _plain(content)
        temporary = self._temporary()
        try:
            # By its name, so that it gets the permissions that any new file gets.
            with temporary.open("xb") as file:
                torch.save({"format": FORMAT, "digest": digest_of(content), **content}, file)
                file.flush()
                os.fsync(file.fileno())
            if self._present():
                shutil.copymode(self.path, temporary)
            os.replace(temporary, self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def read(self) -> Saved | None:
        """What the file holds; None where there is no file.

        Raises:
            StreamError: the file is broken or of other data.
        """
        if not self._present():
            return None
        content = self._content()
        try:
            position, losses = _position(content["position"]), LossLog.of(content["losses"])
            if not isinstance(content["source"], dict) or not isinstance(content["learner"], dict):
                raise TypeError("its parts are of other types")
        except (TypeError, ValueError, KeyError) as error:
            raise StreamError(f"{self.path} is no whole checkpoint ({sentence(error)}); remove it or pass resume=False") from error
        saved, mine = content["source"], self.description
        others = self.source.others(saved, position)
        if "kind" in others:
            raise StreamError(f"{self.path} was written in a run over {saved.get('kind')}, these data are {mine['kind']}; {_ADVICE}")
        if others:
            told = ", ".join(f"{name}: {saved.get(name)} then, {mine.get(name)} now" for name in others)
            raise StreamError(f"{self.path} was written in a run over other {mine['kind']} ({told}); {_ADVICE}")
        return Saved(position, losses, content["learner"])

    def load(self, saved: Saved, learner: Learner) -> None:
        """Bring `learner` to where the file's run stood.

        Raises:
            StreamError: it is of another rule or network; the learner may have been changed.
        """
        try:
            learner.load_state_dict(saved.learner)
        except StreamError as error:
            raise StreamError(f"{self.path}: {error}", **error.data) from error
        except Exception as error:
            raise StreamError(
                f"{self.path} does not fit this learner ({sentence(error)}); build it as the one that was saved, or pass resume=False"
            ) from error

    def _content(self) -> dict[str, Any]:
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:
            # A file that is damaged, or another program's, may make torch raise anything.
            reason = str(error).partition("\n")[0]
            raise StreamError(f"{self.path} is no readable checkpoint ({type(error).__name__}: {reason}); remove it or pass resume=False") from error
        if not isinstance(content, dict) or not str(content.get("format")).startswith("pararnn-cola run"):
            raise StreamError(f"{self.path} is a file of torch, but no checkpoint of train; give another path or pass resume=False")
        if content["format"] != FORMAT:
            raise StreamError(f"{self.path} has the format {content['format']!r}, this version reads {FORMAT!r}; remove it or pass resume=False")
        held = {name: content[name] for name in PARTS if name in content}
        if len(held) < len(PARTS) or digest_of(held) != content.get("digest"):
            raise StreamError(f"{self.path} is damaged: its content is not what was written; remove it or pass resume=False")
        return content

    def _present(self) -> bool:
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        return True

    def _temporary(self) -> Path:
        """A name beside the file, whose own may be as long as a name can be."""
        return self.path.with_name(f".{secrets.token_hex(8)}.part")


_ADVICE = "give the data it was made with, another path, or resume=False"


def _position(numbers: Any) -> Position:
    whole = isinstance(numbers, tuple) and len(numbers) == len(Position._fields) and all(type(number) is int for number in numbers)
    if not whole or min(numbers) < 0 or max(numbers) > numbers[0]:
        raise ValueError(f"its position is {numbers!r:.60}")
    return Position(*numbers)


def _plain(value: Any) -> Any:
    """`value` with numbers as Python has them: what numpy makes of a learning rate would be saved, but not be read again."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        return {_plain(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value] if isinstance(value, list) else tuple(_plain(part) for part in value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value.item() if hasattr(value, "item") else value
