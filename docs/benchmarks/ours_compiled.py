"""Our side of `cpu_compiled.py`: one cell, solved by one backend. Started by the driver; speaks the JSON of `worker.py`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from machine import environment
from ours_pararnn import hide_numba
from worker import FEATURES, Call, Case, calls_of, inputs, serve


class Ours:
    """`ParaRNN(cell)` in training mode, solved by the backend named."""

    def __init__(self, cell: str, backend: str) -> None:
        self._cell, self._backend = cell, backend

    def facts(self) -> dict[str, Any]:
        """Versions."""
        return environment("pararnn-core", "pararnn-cfc")

    def load(self, case: Case) -> dict[str, Call]:
        """`parallel/forward` and `parallel/forward+backward`."""
        layer = self._layer(case)
        return calls_of("parallel", layer, layer, case)

    def agreement(self, case: Case) -> dict[str, Any]:
        """Largest difference to the walk in plain PyTorch, and who solved."""
        from pararnn import sequential_apply

        layer = self._layer(case)
        with torch.no_grad():
            output, (result,) = layer.solve(inputs(case))
            difference = (output - sequential_apply(layer.layers[0], inputs(case))).abs().max()
        return {"max_abs": float(difference), "backend": result.backend, "plan": result.plan.explain()}

    def _layer(self, case: Case) -> Any:
        from min_gru import MinGRU

        from pararnn import NewtonConfig, ParaCfC, ParaRNN

        torch.manual_seed(0)
        cell = {"ParaCfC": ParaCfC, "MinGRU": MinGRU}[self._cell](FEATURES + 1, case.state)
        return ParaRNN(cell, config=NewtonConfig(backend=self._backend)).train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cell", default="ParaCfC")
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    # The cell of the test that proves the point: nothing in the packages knows it.
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
    hide_numba()
    serve(Ours(arguments.cell, arguments.backend), threads=arguments.threads)
