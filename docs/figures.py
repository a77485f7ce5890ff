"""Redraw the figures of the documentation: `python docs/figures.py`.

The page holds the code that draws them; this runs the page inside `docs/_static`, where the pictures are kept.
"""

import os
from pathlib import Path

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

DOCS = Path(__file__).resolve().parent


def main():
    os.environ["MPLBACKEND"] = "Agg"
    os.chdir(DOCS / "_static")
    for example in Sybil([PythonCodeBlockParser()]).parse(DOCS / "explanation" / "solver.md").examples():
        example.evaluate()


if __name__ == "__main__":
    main()
