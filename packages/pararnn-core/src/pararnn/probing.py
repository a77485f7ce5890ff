"""The trial of a backend in a child process, where a crash of compiled code costs nothing but the answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO

from pararnn.findings import Finding, Outcome
from pararnn.provenance import Entry
from pararnn.specs import BackendSpec

MARK = "pararnn-probe: "

# The answer is the last line on stdout, behind a mark: compilers and libraries print there too.
CHILD = f"""
import json, pkgutil, sys
target = sys.argv[1]
try:
    obstacles = pkgutil.resolve_name(target)()
    answer = ["unavailable", "; ".join(map(str, obstacles))] if obstacles else ["ok", ""]
except ImportError as error:
    # An optional library may be missing; the probe's own module may not.
    own = (target.partition(":")[0] + ".").startswith(str(error.name) + ".")
    answer = ["failed" if own else "unavailable", f"{{type(error).__name__}}: {{error}}"]
except (Exception, SystemExit) as error:
    answer = ["failed", f"{{type(error).__name__}}: {{error}}"]
print("\\n{MARK}" + json.dumps(answer), flush=True)
"""


def probe(entry: Entry[BackendSpec], *, timeout: float) -> Finding:
    """Run the backend's probe in a child process for at most `timeout` seconds.

    A child that dies of a signal or leaves without an answer has crashed; one that takes too long has failed, because a first
    compilation on a slow machine looks the same.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        status = _run(entry.spec.probe, timeout, stdout, stderr)
        seconds = time.perf_counter() - start
        if status is None:
            return Finding(outcome=Outcome.FAILED, detail=f"no answer within {timeout:g} s; try a longer --timeout", seconds=seconds)
        answers = [line for line in _text(stdout).splitlines() if line.startswith(MARK)]
        if status == 0 and answers:
            outcome, detail = json.loads(answers[-1].removeprefix(MARK))
            return Finding(outcome=Outcome(outcome), detail=detail, seconds=seconds)
        last_words = next((line for line in reversed(_text(stderr).splitlines()) if line.startswith(("Fatal", "Error"))), "")
    detail = _cause_of_death(status) + (f" ({last_words})" if last_words else "")
    return Finding(outcome=Outcome.CRASHED, detail=detail, seconds=seconds)


def _run(target: str, timeout: float, stdout: IO[bytes], stderr: IO[bytes]) -> int | None:
    """The exit status of the child, or `None` when it had to be stopped."""
    # Files instead of pipes: a compiler that outlives the child would hold a pipe open and block the reader.
    child = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", CHILD, target],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _cause_of_death(status: int) -> str:
    if status >= 0:
        return f"exit status {status} without an answer"
    try:
        return f"signal {-status}, {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
