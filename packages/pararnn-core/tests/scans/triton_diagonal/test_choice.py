"""What Triton serves, why it cannot, and the launch for each amount of work."""

import subprocess
import sys

import pytest
import torch

from pararnn.scans import triton_backend
from pararnn.scans.launches import in_chain, in_tiles, launch_for, streaming, walking
from pararnn.selection import Request, select


@pytest.mark.gpu
def test_auto_takes_triton_on_a_gpu():
    for dtype in triton_backend.DTYPES:
        assert select(Request.of("scan/diagonal", device="cuda", dtype=dtype)).backend.name == "triton"


def test_without_triton_the_reasons_say_what_to_install():
    program = (
        "import importlib.util, sys; sys.modules['triton'] = None\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)\n"
        "import torch\nfrom pararnn import Diagonal, scan\n"
        "from pararnn.scans.triton_backend import reasons\nfrom pararnn.selection import Request\n"
        "print(reasons(Request.of('scan/diagonal'))[0])\n"
        "print(scan(Diagonal(torch.ones(1, 3, 1)), torch.ones(1, 3, 1)).flatten().tolist())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["triton is not installed; pip install 'pararnn-core[triton]'", "[1.0, 2.0, 3.0]"]


def test_every_obstacle_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    found = triton_backend.reasons(Request.of("scan/diagonal", device="cpu", dtype="int32", time=1 << 31))
    assert any("the tensors are int32" in reason for reason in found)
    assert any("at most 2147418112 steps" in reason for reason in found)
    assert any("the tensors are on the CPU" in reason for reason in found)
    assert any("on xpu" in reason for reason in triton_backend.reasons(Request.of("scan/diagonal", device="xpu")))
    if not torch.cuda.is_available():
        assert "it runs on CUDA devices, and torch sees none here" in triton_backend.reasons(Request.of("scan/diagonal", device="cuda"))


def test_an_interpreter_has_to_be_named():
    assert select(Request.of("scan/diagonal")).backend.name != "triton"
    assert select(Request.of("scan/block_diagonal")).backend.name != "triton"


def test_many_lanes_stream_and_few_share_the_time():
    facts = {"itemsize": 4, "processors": 132}
    assert launch_for(8, 4096, 8 * 4096, 1536, **facts).variant == "stream"
    assert launch_for(8, 4096, 8 * 4096, 1536, is_complex=True, **facts).variant == "walk"
    assert launch_for(32, 8192, 32 * 8192, 1024, **facts).variant == "chain"
    assert launch_for(32, 128, 32 * 128, 1024, **facts).variant == "stream"
    assert launch_for(1, 131072, 131072, 64, **facts).variant == "chain"
    assert launch_for(1, 131072, 131072, 64, is_complex=True, **facts).variant == "tiles"
    assert launch_for(1, 64, 64, 64, **facts).variant == "walk"
    # One long segment among many short ones is what everybody would wait for.
    assert launch_for(1000, 100000, 101000, 64, **facts).variant == "chain"
    # A tile is as many bytes in every precision, and half precision is carried in single.
    assert [streaming(itemsize=size).block_state for size in (2, 4, 8)] == [64, 32, 16]
    # So are the tiles on their way, of which there are fewer where three tensors are read.
    assert [streaming(itemsize=size).stages for size in (2, 4, 8)] == [5, 3, 3]
    assert [streaming(itemsize=size, costate=True).stages for size in (2, 4, 8)] == [4, 4, 4]
    assert [walking(itemsize=size).block_time for size in (2, 4, 8, 16)] == [16, 16, 8, 4]
    assert [in_tiles(itemsize=size).block_time for size in (2, 4, 8, 16)] == [64, 64, 32, 16]
    assert [in_chain(1 << 16, itemsize=size).block_time for size in (2, 4, 8)] == [256, 256, 128]
    assert [in_chain(1 << 16, itemsize=4, costate=costate).block_time for costate in (False, True)] == [256, 128]
    # There are about as many tiles in a link as links.
    assert [in_chain(length, itemsize=4).group for length in (100, 1 << 16, 1 << 17)] == [16, 16, 32]
