"""Our side of `cpu_cfc.py`: the parallel solve, the loop a user writes, and the walk of `sequential_apply`, on one and the same cell.

Started by the driver; speaks the JSON of `worker.py`. Nothing is compiled to C here (`cpu_compiled.py` compares that):
`--plain` hides numba too, so that only plain torch is at work.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from machine import environment
from torch import Tensor
from worker import FEATURES, Call, Case, calls_of, inputs, serve


class Ours:
    """`ParaRNN(ParaCfC)` in training mode, solved in plain PyTorch, otherwise with the default configuration."""

    def facts(self) -> dict[str, Any]:
        """Versions, and whether numba was at work."""
        facts = environment("pararnn-core", "pararnn-cfc", "numba", "numpy")
        return facts | {"numba_hidden": "numba" in sys.modules and sys.modules["numba"] is None}

    def load(self, case: Case) -> dict[str, Call]:
        """`parallel`, `loop` and `walk`, each `/forward` and `/forward+backward`."""
        from pararnn import sequential_apply

        cell, layer = _cell_and_layer(case)
        return {
            **calls_of("parallel", layer, cell, case),
            **calls_of("loop", lambda x: loop(cell, x), cell, case),
            **calls_of("walk", lambda x: sequential_apply(cell, x), cell, case),
        }

    def agreement(self, case: Case) -> dict[str, Any]:
        """Largest difference to the loop."""
        cell, layer = _cell_and_layer(case)
        with torch.no_grad():
            return {"max_abs": float((layer(inputs(case)) - loop(cell, inputs(case))).abs().max())}


def loop(cell: Any, x: Tensor) -> Tensor:
    """The states `(batch, time, state)` by the loop a user writes: input projection once, then one `step` a sample."""
    projected = cell.project_wx(x)
    state = x.new_zeros(x.shape[0], cell.d_h)
    states = []
    for sample, wx in zip(x.unbind(1), projected.unbind(1), strict=True):
        state = cell.step(state, sample, wx=wx)
        states.append(state)
    return torch.stack(states, dim=1)


def hide_numba() -> None:
    """Make `import numba` fail as it does where it is not installed. To be called before pararnn is imported."""
    sys.modules["numba"] = None  # type: ignore[assignment]


def _cell_and_layer(case: Case) -> tuple[Any, Any]:
    from pararnn import NewtonConfig, ParaCfC, ParaRNN

    torch.manual_seed(0)
    cell = ParaCfC(FEATURES + 1, case.state)
    return cell, ParaRNN(cell, config=NewtonConfig(backend="torch")).train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    if arguments.plain:
        hide_numba()
    serve(Ours(), threads=arguments.threads)
