"""Redraw the figures of the documentation: `python docs/figures.py`.

The pages hold the code that draws them; this runs the pages inside `docs/_static`, where the pictures are kept. The second figure holds times, so
run it on a machine that does nothing else.
"""

import os
from pathlib import Path

import torch
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

DOCS = Path(__file__).resolve().parent


def main():
    os.environ["MPLBACKEND"] = "Agg"
    os.chdir(DOCS / "_static")
    torch.set_num_threads(2)
    for example in Sybil([PythonCodeBlockParser()]).parse(DOCS / "explanation" / "solver.md").examples():
        example.evaluate()


if __name__ == "__main__":
    main()
