"""Files of data sets that the user has: where they are, and what to say where they are not, or are not what they should be."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from pararnn.errors import ConfigError, InputError


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that is distributed as files: what it is called, where it can be had, and in which folders of what it unpacks to the files lie."""

    title: str
    address: str
    folders: tuple[str, ...] = (".",)

    def folder(self, path: str | os.PathLike[str]) -> Path:
        """`path` as a Path.

        Raises:
            ConfigError: it is none.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"path is of type {type(path).__name__}; give the folder of {self.title}; {self.advice}")
        return Path(path)

    def find(self, path: str | os.PathLike[str], *names: str) -> Path:
        """The first file of `names` in a folder of the data set at `path`, packed by gzip or not.

        Raises:
            ConfigError: none of them is there, or `path` itself is not.
        """
        root = self.folder(path)
        if not root.is_dir():
            raise ConfigError(f"{root} is no folder, so {self.title} cannot be read from it; {self.advice}", path=root)
        for folder in self.folders:
            for name in names:
                for candidate in (root / folder / name, root / folder / f"{name}.gz"):
                    if candidate.is_file():
                        return candidate
        looked = ", ".join(str(root / folder) for folder in self.folders)
        raise ConfigError(f"{self.title} needs the file {' or '.join(names)}, which is not in {looked}; {self.advice}", path=root, names=names)

    def read(self, path: Path) -> bytes:
        """The content of a file, unpacked.

        Raises:
            InputError: it cannot be read or unpacked.
        """
        try:
            content = path.read_bytes()
            return gzip.decompress(content) if path.suffix == ".gz" else content
        except (OSError, EOFError, zlib.error) as error:
            raise self.broken(path, f"cannot be read ({error})") from error

    def broken(self, path: Path, fault: str) -> InputError:
        """An error that says what is wrong with a file."""
        return InputError(f"{path} {fault}; replace the file: {self.advice}", path=path)

    @property
    def advice(self) -> str:
        """Where to get the files."""
        return f"{self.title} can be had at {self.address}, nothing is downloaded here"
