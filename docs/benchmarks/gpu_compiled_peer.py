"""The peer's side of `gpu_compiled.py`: pararnn-torch 0.17.4, in a process of its own, since it is imported as `pararnn` too.

Started by the driver with nothing but the peer's folder on PYTHONPATH. It writes JSON to the file named on the command line, anew after every row,
so that what is measured is kept whatever happens later.
"""

from __future__ import annotations

import argparse
import json
import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from gpu_timing import BATCHES, FEATURES, SHAPES, graphed, inputs, layer_row, recover, step_us

from pararnn import NewtonConfig, ParaCfC, ParaRNN

DECODED_SIZE = 256


def layer_of(size: int) -> ParaRNN:
    """In training mode, which is where it solves in parallel, with its own table of iteration counts."""
    torch.manual_seed(0)
    return ParaRNN(ParaCfC(FEATURES + 1, size), config=NewtonConfig(max_iters=None)).cuda().train()


def decode_row(batch: int) -> dict[str, Any]:
    """Microseconds of `cell.step`, which is what it has for this cell, launched and recorded."""
    cell, x = layer_of(DECODED_SIZE).layers[0], inputs(batch, 1)[:, 0]
    row: dict[str, Any] = {"batch": batch, "state": DECODED_SIZE}
    with torch.no_grad():
        state = torch.zeros(batch, DECODED_SIZE, device="cuda")

        def step() -> None:
            state.copy_(cell.step(state, x))

        row["step_us"] = step_us(step)
        try:
            row["graph_us"] = step_us(graphed(step))
        except Exception as failure:
            row["graph_failed"] = f"{type(failure).__name__}: {failure}".partition("\n")[0]
            recover()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    # It logs a warning a call, which would be timed too.
    logging.disable(logging.CRITICAL)
    results: dict[str, Any] = {"version": metadata.version("pararnn-torch"), "layers": [], "decode": []}

    def keep() -> None:
        arguments.target.write_text(json.dumps(results))

    for shape in SHAPES[:1] if arguments.quick else SHAPES:
        batch, length, size = shape
        row: dict[str, Any] = {"shape": shape}
        try:
            layer, x, grad = layer_of(size), inputs(batch, length), torch.randn(shape, device="cuda")
            # It reads numbers on the host, so that there is no CUDA graph of it.
            row |= layer_row(layer, x, grad, graphs=False)
            row["iterations"] = layer.last_stats[0].iters
        except Exception as failure:
            row["failed"] = f"{type(failure).__name__}: {failure}".partition("\n")[0]
        results["layers"].append(row)
        keep()
        torch.cuda.empty_cache()
    for batch in BATCHES[:1] if arguments.quick else BATCHES:
        results["decode"].append(decode_row(batch))
        keep()


if __name__ == "__main__":
    main()
