"""Redraw the figures of the documentation: `python docs/figures.py`.

The pages hold the code that draws them; this runs the pages inside `docs/_static`, where the pictures are kept.
"""

import os
from pathlib import Path

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

DOCS = Path(__file__).resolve().parent
PAGES = ("explanation/solver.md", "explanation/s4.md", "explanation/nanode.md", "tutorials/neural_ode_with_moving_weights.md")


def main():
    os.environ["MPLBACKEND"] = "Agg"
    os.chdir(DOCS / "_static")
    for page in PAGES:
        for example in Sybil([PythonCodeBlockParser()]).parse(DOCS / page).examples():
            example.evaluate()


if __name__ == "__main__":
    main()
