"""The examples of the READMEs, which lie outside of this folder."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_examples_of_a_readme_run(readme, run_page):
    assert run_page(readme) >= 1
