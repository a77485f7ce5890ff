"""`pararnn.compiler.explain`: the same as `pararnn compile`, of a cell in hand."""

import subprocess
import sys

import pytest
import torch
from toy_cells import DenseRNN, Tanh

from pararnn import ParaRNN
from pararnn.compiler import explain
from pararnn.errors import CellError, ShapeError

X = torch.zeros(2, 5, 3, dtype=torch.float64)


def test_a_cell_in_hand_is_explained_in_sentences():
    told = explain(Tanh(3), X)
    assert told.compiled is not None
    assert str(told).startswith("The step of Tanh compiles in float64: 3 operations on 2 operands.\n")
    assert "o1: channel of self.weight" in told.listing
    assert set(told.engines) == {"triton", "native"}


def test_what_stands_in_the_way_is_in_the_text():
    told = explain(DenseRNN(3, 4), X)
    assert told.compiled is None
    assert str(told).splitlines()[:2] == ["The step of DenseRNN cannot be compiled in float64:", f"- {told.obstacles[0]}"]
    assert "Dense" in told.obstacles[0]
    assert not any(told.serves(engine) for engine in told.engines)


def test_a_layer_around_one_cell_is_that_cell():
    assert str(explain(ParaRNN(Tanh(3)), X)) == str(explain(Tanh(3), X))
    with pytest.raises(CellError, match=r"a ParaRNN of 2 layers.*model\.layers\[0\]"):
        explain(ParaRNN([Tanh(3), Tanh(3)]), X)


def test_what_is_no_cell_or_does_not_fit_is_refused():
    with pytest.raises(CellError, match="there is no step to compile"):
        explain(torch.nn.Linear(3, 3), X)
    with pytest.raises(ShapeError, match="x must be a tensor"):
        explain(Tanh(3), X[0])


def test_looking_for_the_function_imports_nothing_heavy():
    code = "import sys; from pararnn.compiler import explain; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
