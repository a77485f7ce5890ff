"""The next character of a text, in sequences cut from it or as an endless stream."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pararnn.errors import ConfigError, InputError
from pararnn_cola.network import Network
from pararnn_cola.tasks.base import Batch, Task
from pararnn_cola.tasks.evaluation import answers
from pararnn_cola.tasks.placement import Placement

LONGEST_PATH = 4096
PIECE, PIECES = 1000, 100
"""How many characters of the test text are read in a row, and how many such pieces at most."""


class Characters(Task):
    """A text, each character as a one-hot vector over the `vocabulary`; wanted is the next character.

    `text` is the text itself, or the path (`pathlib.Path`) of a file in UTF-8; None takes the help topics that CPython ships with, about half a
    million characters of English that differ from version to version of Python. The last `test_share` of the text is for tests; the vocabulary is
    that of the whole text.

    `evaluate` gives `bits_per_character` over the test text (100 000 characters of it at most), read in pieces of up to 1000 characters, each
    from a zero state. `stream` reads the training text on and on.

    Raises:
        ConfigError: `text` cannot be read, there is no text, `test_share` is not within 0 and 1, or `placement` is none (see `loss_weights`).
        InputError: the text is too short to cut sequences of `length` from, or always the same character.
    """

    name = "characters"
    loss = "cross_entropy"

    def __init__(
        self,
        text: str | os.PathLike[str] | None = None,
        length: int = 100,
        placement: Placement = "every",
        *,
        test_share: float = 0.1,
    ) -> None:
        super().__init__(length, placement)
        if not 0 < test_share < 1:
            raise ConfigError(f"test_share={test_share}; the share of the text that is kept for tests lies between 0 and 1", test_share=test_share)
        whole = _text_of(text)
        self.vocabulary = "".join(sorted(set(whole)))
        self.index = {character: position for position, character in enumerate(self.vocabulary)}
        self.input_size = self.output_size = len(self.vocabulary)
        end = len(whole) - math.ceil(test_share * len(whole))
        if end <= length or len(whole) - end < 2 or len(self.vocabulary) < 2:
            raise InputError(
                f"a text of {len(whole)} characters, {self.input_size} of them different, has {end} for training and {len(whole) - end} for tests; "
                f"more than length={length} for training, 2 for tests and 2 different ones are needed",
                characters=len(whole),
            )
        self.train, self.test = self.encode(whole).tensor_split([end])
        self.test_share = test_share

    def encode(self, text: str) -> Tensor:
        """The places `(characters,)` of the characters of `text` in the vocabulary.

        Raises:
            InputError: one of them is not in it.
        """
        try:
            return torch.tensor([self.index[character] for character in text], dtype=torch.int32)
        except KeyError as error:
            raise InputError(
                f"the character {error} is not among the {self.input_size} of the vocabulary; leave it out", character=error.args[0]
            ) from error

    def decode(self, places: Tensor) -> str:
        """The text whose characters have `places` `(characters,)` in the vocabulary.

        Raises:
            InputError: one of them is below 0 or beyond its end.
        """
        if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < self.input_size:
            raise InputError(
                f"places go from {int(places.min())} to {int(places.max())}; the vocabulary has 0 to {self.input_size - 1}", size=self.input_size
            )
        return "".join(self.vocabulary[place] for place in places.tolist())

    def stream(
        self,
        batch: int,
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        lead: tuple[int, ...] = (),
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of inputs `(*lead, batch, vocabulary)` as `dtype` and next characters `(*lead, batch)` without end, on `device`.

        Row r starts r / batch into the training text, reads on without a gap, and goes on at its start after its end (where the pair of the last
        and the first character is not one of the text). `lead` is `network.lead`; it repeats the pairs for each run of an ensemble.

        Raises:
            ConfigError: `batch` is no whole number from 1 to the number of characters.
        """
        count = len(self.train)
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= count:
            raise ConfigError(f"batch={batch}; the training text has {count} characters for rows to start at, so 1 to {count} rows", batch=batch)
        return self._read_on(self.train.to(device), torch.arange(batch, device=device) * count // batch, dtype, lead)

    def _read_on(self, text: Tensor, positions: Tensor, dtype: torch.dtype, lead: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        current = text[positions]
        while True:
            positions = (positions + 1) % len(text)
            following = text[positions]
            yield self._one_hot(current).to(dtype).expand(*lead, -1, -1), following.long().expand(*lead, -1)
            current = following

    def _one_hot(self, places: Tensor) -> Tensor:
        return F.one_hot(places.long(), self.input_size).float()

    def _draw(self, size: int, generator: torch.Generator) -> Batch:
        start = torch.randint(0, len(self.train) - self.length, (size, 1), generator=generator)
        places = self.train[start + torch.arange(self.length + 1)]
        return Batch(self._one_hot(places[:, :-1]), places[:, 1:].long(), self.weights)

    def _measure(self, network: Network) -> dict[str, Tensor]:
        piece = min(PIECE, len(self.test) - 1)
        pieces = min(PIECES, (len(self.test) - 1) // piece)
        seen, following = (self.test[first : first + pieces * piece].view(pieces, piece) for first in (0, 1))
        surprise = torch.zeros(network.lead, dtype=torch.float64, device=network.readout.bias.device)
        for rows, time, output in answers(network, seen, self._one_hot):
            wanted = following[rows, time].long().to(output.device).expand(output.shape[:-1])
            surprise -= output.double().log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).sum((-2, -1))
        return {"bits_per_character": surprise / (pieces * piece * math.log(2))}

    def _options(self) -> dict[str, Any]:
        return {"length": self.length, "placement": self.placement, "characters": len(self.train) + len(self.test), "vocabulary": self.input_size}


def _text_of(text: str | os.PathLike[str] | None) -> str:
    if isinstance(text, str):
        if _names_a_file(text):
            raise ConfigError(
                f"text={text!r} is one line that names a file; to learn what is in the file give pathlib.Path(...), as a str is the text itself",
                text=text,
            )
        return text
    if text is None:
        try:
            topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise ConfigError(f"this Python ships without its help topics ({error}); give a text=, or the pathlib.Path of one") from error
        return "\n".join(topics[title] for title in sorted(topics))
    if not isinstance(text, os.PathLike):
        raise ConfigError(f"text is of type {type(text).__name__}; give a str that is the text, or the pathlib.Path of a file in UTF-8")
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{os.fspath(text)} cannot be read as a text in UTF-8 ({error}); give another path, or the text itself", path=text
        ) from error


def _names_a_file(text: str) -> bool:
    """Whether a str that should be a text looks like the path of a file instead: one line that exists, or ends like a text file beside a folder."""
    if not text or "\n" in text or len(text) > LONGEST_PATH:
        return False
    try:
        return Path(text).is_file() or (re.fullmatch(r"\S*[/\\]\S*\.\w{1,5}", text) is not None)
    except (OSError, ValueError):
        return False
