"""The peer's side of `cpu_cfc.py`: pararnn-torch 0.17.4, in an environment of its own.

It is imported as `pararnn`, as ours is, and it cannot be imported without triton, also where no GPU is. To make its environment:

    python3 -m venv peer
    peer/bin/python -m pip install "torch==2.13.0" "numpy==2.4.6" "safetensors==0.8.0"
    peer/bin/python -m pip install --no-deps "triton==3.6.0" "pararnn-torch==0.17.4"
    peer/bin/python -c "from pararnn import ParaCfC, ParaRNN"

(`--no-deps`: left alone, pip takes the peer to torch 2.11. A CPU build of torch is enough.) This script is started by the driver and
speaks the JSON of `worker.py`.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from machine import environment
from worker import FEATURES, Call, Case, calls_of, inputs, serve

from pararnn import NewtonConfig, ParaCfC, ParaRNN, sequential_apply


class Peer:
    """`ParaRNN(ParaCfC)` in training mode, which is where it solves in parallel, with its own table of iteration counts."""

    def facts(self) -> dict[str, Any]:
        """Versions; the distribution proves which `pararnn` was imported."""
        facts = environment("pararnn-torch", "triton", "numpy", "safetensors")
        if facts["distributions"]["pararnn-torch"] is None:
            raise RuntimeError("this environment has no pararnn-torch: the `pararnn` imported here is not the peer's; see this script's docstring")
        return facts

    def load(self, case: Case) -> dict[str, Call]:
        """`parallel/forward` and `parallel/forward+backward`."""
        layer = _layer(case)
        return calls_of("parallel", layer, layer, case)

    def agreement(self, case: Case) -> dict[str, Any]:
        """Largest difference to its own sequential path, and the iterations it took."""
        layer = _layer(case)
        with torch.no_grad():
            difference = (layer(inputs(case)) - sequential_apply(layer.layers[0], inputs(case))).abs().max()
        return {"max_abs": float(difference), "iterations": [stats.iters for stats in layer.last_stats]}


def _layer(case: Case) -> ParaRNN:
    torch.manual_seed(0)
    return ParaRNN(ParaCfC(FEATURES + 1, case.state), config=NewtonConfig(max_iters=None)).train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    # It logs a warning a call, which would be timed too.
    logging.disable(logging.CRITICAL)
    serve(Peer(), threads=parser.parse_args().threads)
