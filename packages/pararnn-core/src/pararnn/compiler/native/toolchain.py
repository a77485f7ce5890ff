"""The C compiler of this machine, and libraries made by it, kept in the cache."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pararnn.compiler import cache
from pararnn.errors import CompilationError

CANDIDATES = ("gcc", "clang", "cc", "c++")
# Rounding is that of the source in scalar and vector code alike: no contraction, no reordering. Nothing looks at floating point flags or errno.
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
# The first that the compiler takes: Clang has no -march on some processors.
TUNINGS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())
# Of what a compiler says, in a message.
LINES = 20


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C, what it says it is, and the flags that make it use this processor."""

    command: tuple[str, ...]
    version: str
    tuning: tuple[str, ...]


_lock = threading.Lock()


def reasons() -> tuple[str, ...]:
    """Why nothing can be compiled here; nothing where it can."""
    if sys.platform == "win32":
        return ("it needs a compiler that understands gcc's options, which Windows has in WSL; install pararnn there",)
    found = _found()
    return () if isinstance(found, Compiler) else (found,)


def compiler() -> Compiler | None:
    """The compiler that CC names; without CC, the first that works of what CXX names and the usual ones."""
    found = _found()
    return found if isinstance(found, Compiler) else None


def _found() -> Compiler | str:
    """A compiler whose libraries can be kept and loaded, or why there is none."""
    try:
        folder = cache.folder()
    except OSError as error:
        return f"there is no folder for libraries ({error}); set PARARNN_CACHE_DIR to one that can be written to"
    return _first_that_works(os.environ.get("CC"), os.environ.get("CXX"), os.environ.get("PATH"), folder)


@functools.cache
def _first_that_works(c: str | None, cxx: str | None, path: str | None, folder: Path) -> Compiler | str:
    tried = []
    # Who names one wants that one.
    for name in (c,) if c else dict.fromkeys(name for name in (cxx, *CANDIDATES) if name):
        fault = "there is no such command"
        try:
            command = tuple(shlex.split(name))
            if command and shutil.which(command[0]) is not None:
                version = subprocess.run((*command, "--version"), capture_output=True, text=True, timeout=60, check=True).stdout
                for tuning in TUNINGS:
                    fault = _fault(command, tuning, folder)
                    if not fault:
                        return Compiler(command, version, tuning)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            fault = str(error)
        tried.append(f"{name} ({fault})")
    if c:
        return f"CC names a C compiler that does not work here: {tried[0]}; set CC to another, or unset it"
    how = "run xcode-select --install" if sys.platform == "darwin" else "install gcc (apt install gcc, dnf install gcc, conda install gcc)"
    return f"no C compiler works here, tried {', '.join(tried)}; {how} or clang, or set CC"


def _fault(command: tuple[str, ...], tuning: tuple[str, ...], folder: Path) -> str:
    """What is wrong with a small library that is made and loaded where all of them will be; empty where it works."""
    text = "#include <math.h>\ndouble probe(double x) { return x * INFINITY; }\n"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file = Path(place) / "probe.so"
        done = subprocess.run((*command, *FLAGS, *tuning, "-x", "c", "-", "-o", str(file)), input=text, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            return _words(done)
        _load(file)
    return ""


def library(source: str) -> ctypes.CDLL:
    """`source` as a loaded library, compiled unless that has been done on such a machine before.

    Raises:
        CompilationError: there is no compiler, or it failed, or its libraries cannot be kept; the message holds its words.
    """
    found = compiler()
    if found is None:
        raise CompilationError(f"a step cannot be compiled: {'; '.join(reasons())}", obstacles=reasons())
    digest = hashlib.sha256("\n".join((source, found.version, *found.command, *FLAGS, *found.tuning, processor())).encode()).hexdigest()[:20]
    file = cache.folder() / f"native-{digest}.so"
    try:
        with _lock, _alone(file):
            if _is_whole(file):
                with contextlib.suppress(OSError):
                    return _load(file)
            file.unlink(missing_ok=True)
            _compile(found, source, file)
            return _load(file)
    except OSError as error:
        raise CompilationError(
            f"a library cannot be kept in {file.parent}: {error}; set PARARNN_CACHE_DIR to another folder, or use NewtonConfig(backend='torch')",
            obstacles=(str(error),),
        ) from error


def _compile(found: Compiler, source: str, file: Path) -> None:
    """Compile beside the final place and move the library there in one step, so that no process ever sees half of it."""
    text = cache.keep(f"{file.stem}.c", source)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made, digest = Path(folder) / file.name, Path(folder) / "digest"
        command = (*found.command, *FLAGS, *found.tuning, "-x", "c", str(text), "-o", str(made), "-lm")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = _words(done)
            raise CompilationError(
                f"{found.command[0]} failed on {text}: {said}; set CC to another compiler, or use NewtonConfig(backend='torch')",
                obstacles=(said,),
                command=command,
            )
        digest.write_text(_digest(made))
        made.replace(file)
        digest.replace(file.with_suffix(".sha256"))


def _is_whole(file: Path) -> bool:
    """Whether `file` is as it was made. To load a part of a library, as a full disk or an interrupted copy leaves it, may end the process."""
    try:
        return file.with_suffix(".sha256").read_text() == _digest(file)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return " | ".join(done.stderr.strip().splitlines()[:LINES]) or f"it ended with {done.returncode}"


def _load(file: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(file))


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Hold the lock that keeps other processes from compiling the same at the same time."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (file.parent / f"{file.stem}.lock").open("w") as held:
        # Some file systems of clusters have no locks. Then work is done twice, and nothing else happens.
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


@functools.cache
def processor() -> str:
    """What this processor can do, so that no other one meets a library that was compiled for it."""
    with contextlib.suppress(OSError):
        told = Path("/proc/cpuinfo").read_text().splitlines()
        facts = dict.fromkeys(line for line in told if line.partition(":")[0].strip() in ("flags", "Features", "model name", "CPU part", "isa"))
        if facts:
            return "\n".join((platform.machine(), *facts))
    return "\n".join((platform.machine(), platform.processor(), platform.version()))
