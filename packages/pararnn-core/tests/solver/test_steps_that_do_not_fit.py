"""A step that gives no next state is refused with one sentence, the same by every backend, and what only tracing cannot do is no fault."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from toy_cells import ToyCell

from pararnn import CellError, Dense, NewtonConfig, newton_apply
from pararnn.compiler import catalogue, identity
from pararnn.solver import truth

BACKENDS = ("auto", "torch", "native")
X = torch.randn(4, 1500, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Gates(NamedTuple):
    keep: Tensor
    candidate: Tensor


class Stepping(ToyCell):
    """A cell whose step is given."""

    def __init__(self, made, structure=None):
        super().__init__(4)
        self.made = made
        if structure is not None:
            self.structure = structure

    def drive(self, x):
        return Gates(torch.sigmoid(x), x)

    def step(self, state, gates):
        return self.made(state, gates)


def good(state, gates):
    return gates.keep * state + (1 - gates.keep) * torch.tanh(gates.candidate)


def too_wide(state, gates):
    return torch.tanh(state * torch.cat((gates.keep, gates.keep), dim=-1))


def from_the_front(state, gates):
    keep, candidate = torch.cat((gates.keep, gates.candidate), dim=-1).chunk(2, dim=1)
    return keep * state + (1 - keep) * torch.tanh(candidate)


def widened(state, gates):
    return torch.cat((good(state, gates),) * 2, dim=-1)


def in_half(state, gates):
    return good(state, gates).half()


def output_too(state, gates):
    state = good(state, gates)
    return state, state


def forgotten(state, gates):
    good(state, gates)


WRONG = {
    too_wide: (
        r"step of Stepping, whose state_size is 4, fails on states \(2, 2, 4\).*drive leaves keep \(2, 2, 4\), candidate \(2, 2, 4\): "
        r"RuntimeError: The size of tensor a \(4\) must match the size of tensor b \(8\).*compare the last sizes"
    ),
    from_the_front: r"fails on states \(2, 2, 4\).*it takes states \(2, 4\), so it counts dimensions from the front; .* dim=-1",
    widened: r"makes a state \(2, 2, 8\) in torch.float64 from one \(2, 2, 4\) .*it must keep shape and dtype: compare the last sizes",
    in_half: r"makes a state \(2, 2, 4\) in torch.float16 .*: is its drive of the state's dtype\?",
    output_too: "the step of Stepping returned a tuple; it must return the next state, one tensor",
    forgotten: "the step of Stepping returned None, as without a return; it must return the next state",
}


@pytest.mark.parametrize("length", [20, 1500])
@pytest.mark.parametrize(("made", "words"), WRONG.items(), ids=[made.__name__ for made in WRONG])
def test_a_step_that_gives_no_next_state_is_refused_alike_by_every_backend(made, words, length):
    found = []
    for backend in BACKENDS:
        with pytest.raises(CellError, match=words) as caught:
            newton_apply(Stepping(made), X[:, :length], NewtonConfig(backend=backend))
        found.append(str(caught.value))
    assert len(set(found)) == 1


@pytest.mark.parametrize("claims", [{"structure": Dense}, {"exact_jacobian": False}, {"is_linear": True}], ids=["dense", "inexact", "linear"])
def test_a_step_that_nobody_would_compile_is_refused_too(claims):
    cell = Stepping(too_wide)
    for name, value in claims.items():
        setattr(cell, name, value)
    with pytest.raises(CellError, match="fails on states"):
        newton_apply(cell, X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_error_of_pytorch_is_the_cause(backend):
    with pytest.raises(CellError) as caught:
        newton_apply(Stepping(too_wide), X, NewtonConfig(backend=backend))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mistake_in_python_stays_what_it_is(backend):
    with pytest.raises(NameError, match="no_such_name"):
        newton_apply(Stepping(lambda state, gates: state + no_such_name), X, NewtonConfig(backend=backend))


def test_a_step_that_only_tracing_cannot_follow_is_solved_in_plain_torch(tolerance):
    def reads_a_number(state, gates):
        return good(state, gates) * (1.0 if gates.keep.min().item() > -1 else 2.0)

    expected = newton_apply(Stepping(good), X, NewtonConfig(backend="torch"))
    torch.testing.assert_close(newton_apply(Stepping(reads_a_number), X), expected, **tolerance["states"])


def test_a_graph_that_is_compiled_leaves_the_error_to_the_solve():
    apply = torch.compile(lambda cell, x: newton_apply(cell, x), backend="eager")
    with pytest.raises(CellError, match="fails on states"):
        apply(Stepping(too_wide), X)


def test_a_step_that_was_found_to_fit_is_not_tried_again(monkeypatch):
    cell = Stepping(good)
    newton_apply(cell, X, NewtonConfig(backend="native"))
    for module, name in ((identity, "functions_entered"), (catalogue, "trace_places"), (truth, "check_one_step")):
        monkeypatch.setattr(module, name, lambda *arguments: pytest.fail("tried again"))
    for _ in range(4):
        newton_apply(cell, X, NewtonConfig(backend="native"))
