"""A process that is forked while threads of a backend wait for work has their pool, but not them."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

PROGRAM = """
import os
import torch
from pararnn_s4 import cauchy
from pararnn_s4.kernels import numba_backend

numba_backend.WORTH_THREADS = 1
torch.set_num_threads(2)
v, w, z = torch.ones(1, 4, 3), -torch.ones(4, 3), torch.ones(8)
expected = cauchy(v, z, w, backend="numba")
child = os.fork()
if child == 0:
    torch.set_num_threads(2)
    os._exit(0 if torch.equal(cauchy(v, z, w, backend="numba"), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_computes_with_threads_of_its_own():
    # In a session of its own, so that a child that waits for ever ends with its parent.
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", PROGRAM], start_new_session=True) as process:
        try:
            assert process.wait(timeout=60) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
