"""Memory that does not grow with the stream: peaks of fresh processes, and graphs that nobody keeps."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from pararnn_cola import train

MEBIBYTE = 2**20


def peak_of(program, *arguments):
    """Bytes of resident memory at the highest, of a fresh process.

    Linux begins the `ru_maxrss` of a process with what its parent had at the most, which may hide all that is looked for; `VmHWM` begins anew.
    """
    ending = """
import pathlib, resource, sys
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(peak)
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"{textwrap.dedent(program)}\n{ending}", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(run.stdout)


COLA_STREAM = """
    import sys, torch
    from pararnn_cola import COLA, Network, train
    generator = torch.Generator().manual_seed(0)
    def stream(length):
        for _ in range(length):
            yield torch.randn(16, 3, generator=generator), torch.randn(16, 1, generator=generator)
    learner = COLA(Network.rnn(3, 64, 1, seed=0), lr=0.01)
    report = train(learner, stream(int(sys.argv[1])))
    assert report.steps == learner.steps == int(sys.argv[1])
"""


def test_cola_needs_no_more_memory_for_20_000_steps_than_for_100():
    assert peak_of(COLA_STREAM, 20_000) - peak_of(COLA_STREAM, 100) < 2 * MEBIBYTE


GROWING = """
    import sys
    kept = [bytes(1000) for _ in range(int(sys.argv[1]))]
"""


def test_growth_would_be_seen():
    assert 3 * MEBIBYTE < peak_of(GROWING, 4000) - peak_of(GROWING, 0) < 6 * MEBIBYTE


FILE_STREAM = """
    import sys, torch
    from pararnn_cola import TBPTT1, Network, memmap_stream, train
    learner = TBPTT1(Network.rnn(128, 4, 128, seed=0), lr=0.01)
    report = train(learner, memmap_stream(sys.argv[1], batch=64, block=8, dtype=torch.float32), steps=int(sys.argv[2]))
    assert report.steps == int(sys.argv[2])
"""


def test_a_file_is_read_without_being_held(tmp_path):
    np = pytest.importorskip("numpy")
    path, length = tmp_path / "rows.npy", 1000
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(64 * length + 1, 128))
    rows[:] = 0.5
    del rows
    assert path.stat().st_size > 30 * MEBIBYTE
    assert peak_of(FILE_STREAM, path, length) - peak_of(FILE_STREAM, path, 50) < 4 * MEBIBYTE


@pytest.mark.parametrize("name", ["COLA", "TBPTT1", "SnAp1", "EProp"])
def test_rules_in_closed_form_save_nothing_for_a_backward_pass(name, make_learner, make_stream):
    saved = []
    learner = make_learner(name)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(1), lambda packed: packed):
        train(learner, make_stream(20))
    assert saved == []


def test_nothing_that_stays_after_a_step_holds_a_graph(rule, make_learner, make_stream):
    learner = make_learner(rule)
    for u, y in make_stream(5):
        result = learner.step(u, y)
        # The graph of a window is what BPTT and TBPTT are made of; others have none to flush.
        learner.flush()
        held = [result.output, result.loss, *learner.tensors().values(), *(p.grad for p in learner.network.parameters())]
        assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in held)


def test_inputs_that_require_gradients_tie_the_stream_to_nothing(make_learner, make_stream):
    learner = make_learner()
    train(learner, ((u.requires_grad_(), y) for u, y in make_stream(5)))
    assert all(tensor.grad_fn is None for tensor in learner.tensors().values())


def test_a_run_keeps_none_of_its_steps(make_learner, make_stream):
    import gc
    import weakref

    seen = []

    def watched():
        for u, y in make_stream(50):
            seen.append(weakref.ref(u))
            yield u, y

    train(make_learner(), watched(), on_step=lambda step, result: step != 50 or gc.collect())
    assert sum(reference() is not None for reference in seen) <= 2
