"""Files that compilers made or read: a folder of them, where each is written once and never changed."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from pathlib import Path


def folder() -> Path:
    """`PARARNN_CACHE_DIR` where it is set, else `pararnn` in the user's folder for caches; a temporary folder where that cannot be written to."""
    try:
        named = os.environ.get("PARARNN_CACHE_DIR")
        wanted = str(Path(named).expanduser().absolute() if named else _of_platform() / "pararnn")
    except RuntimeError:
        # A user without a home, as numbers that containers run under may be.
        wanted = ""
    path = _writable(wanted)
    if not path.is_dir():
        # Somebody has deleted it since.
        _writable.cache_clear()
        path = _writable(wanted)
    return path


def keep(name: str, content: bytes | str) -> Path:
    """The file `name` in `folder()` with `content`, written if it is not there.

    The name is to hold a digest of the content, so that a file of that name is that file. Several processes may do so at once; nobody sees a half.
    """
    data = content.encode() if isinstance(content, str) else content
    path = folder() / name
    if not (path.exists() and path.stat().st_size == len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(unfinished).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(unfinished).unlink()
            raise
    return path


def _of_platform() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / "Library" / "Caches" if sys.platform == "darwin" else Path.home() / ".cache"


@functools.lru_cache(maxsize=16)
def _writable(wanted: str) -> Path:
    """The folder `wanted`, made if need be; a temporary one where it is nameless or cannot be written to."""
    path = Path(wanted)
    with contextlib.suppress(OSError):
        if wanted:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path, prefix=".try."):
                return path
    return Path(tempfile.mkdtemp(prefix="pararnn-"))
