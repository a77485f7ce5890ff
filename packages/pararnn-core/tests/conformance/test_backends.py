import pytest
import torch

from pararnn.conformance import backend_checks, verify_backend
from pararnn.conformance.report import Verdict
from pararnn.distributions import discover
from pararnn.registry import Registry, using
from pararnn.scans import chunked
from pararnn.solver import torch_backend

CORE = [
    ("scan/diagonal", "torch"),
    ("scan/diagonal", "numba"),
    ("scan/block_diagonal", "torch"),
    ("scan/dense", "torch"),
    ("scan/generic", "torch"),
    ("solve", "torch"),
]


@pytest.fixture
def verify(candidate, backend, objects):
    """The report of a backend `trial` that is offered beside the core's."""

    def run(implementation=chunked.scan, op="scan/diagonal", reasons=lambda request: (), probe=lambda: None):
        objects.implementation, objects.no_reasons, objects.probe = implementation, reasons, probe
        core = [one for one in discover() if one.distribution == "pararnn-core"]
        offered = candidate(pararnn_register_backends=[backend("trial", op=op)])
        with using(Registry.of([*core, offered], environ={})):
            return verify_backend(op, "trial")

    return run


@pytest.mark.parametrize(("op", "name"), CORE)
def test_the_backends_of_the_core_pass(op, name):
    report = verify_backend(op, name).raise_for_failures()
    assert [result.check for result in report.results] == list(backend_checks(op))


def test_a_backend_without_a_fault_passes(verify):
    assert verify().failures == {}


def test_a_backend_that_forgets_the_direction_is_named(verify):
    def scan(transition, bias, initial, *, offsets=None, reverse=False):
        return chunked.scan(transition, bias, initial, offsets=offsets)

    found = verify(scan).failures
    assert "reverse" in found["scan_states"]
    assert "the gradient of pararnn.scan(backend='trial')" in found["scan_gradients"]


def test_a_backend_that_forgets_where_packed_sequences_begin_is_named(verify):
    def scan(transition, bias, initial, *, offsets=None, reverse=False):
        return chunked.scan(transition, bias, None if initial is None else initial[:, :1], reverse=reverse)

    found = verify(scan).failures
    assert "packed sequences" in found["scan_of_packs"]
    assert "scan_states" not in found


def test_a_backend_that_reads_memory_as_if_it_were_contiguous_is_named(verify):
    def scan(transition, bias, initial, *, offsets=None, reverse=False):
        dense = torch.as_strided(bias, bias.shape, (bias.shape[1] * bias.shape[2], bias.shape[2], 1))
        return chunked.scan(transition, dense, initial, offsets=offsets, reverse=reverse)

    assert "not contiguous" in verify(scan).failures["scan_of_any_strides"]


def test_a_backend_that_writes_into_its_terms_is_named(verify):
    def scan(transition, bias, initial, *, offsets=None, reverse=False):
        return bias.copy_(chunked.scan(transition, bias, initial, offsets=offsets, reverse=reverse))

    assert "scan_is_repeatable" in verify(scan).failures


def test_a_backend_that_differs_from_call_to_call_is_named(verify):
    def scan(transition, bias, initial, *, offsets=None, reverse=False):
        return chunked.scan(transition, bias, initial, offsets=offsets, reverse=reverse) + 1e-14 * torch.randn_like(bias)

    found = verify(scan).failures
    assert "other bits" in found["scan_is_repeatable"]
    assert "scan_states" not in found


def test_reasons_that_are_one_sentence_are_named(verify):
    assert "it must be a tuple of sentences" in verify(reasons=lambda request: "no").failures["reasons"]


def test_reasons_that_raise_are_named(verify):
    assert "it must return obstacles" in verify(reasons=lambda request: 1 / 0).failures["reasons"]


def test_a_backend_that_cannot_serve_here_is_not_held_to_anything_and_says_why(verify):
    report = verify(reasons=lambda request: ("it needs an abacus",), probe=lambda: ("no abacus",))
    assert report.failures == {}
    assert {result.verdict for result in report.results} == {Verdict.NOT_APPLICABLE}
    assert "it needs an abacus" in report.results[0].detail


def test_a_probe_that_knows_of_an_obstacle_which_reasons_hide_is_named(verify):
    assert "let reasons say so too" in verify(probe=lambda: ("no abacus",)).failures["probe"]


def test_a_backend_of_solve_without_a_fault_passes(verify):
    assert verify(torch_backend.solve, op="solve").failures == {}


def test_a_backend_of_solve_that_does_not_converge_is_named(verify):
    def solve(problem, config):
        result = torch_backend.walked(problem)
        return type(result)(**{**vars(result), "states": result.states * (1 + 1e-6)})

    assert "states of the backend and of the walk differ" in verify(solve, op="solve").failures["solve_states"]


def test_a_backend_of_solve_without_gradients_is_named(verify):
    def solve(problem, config):
        result = torch_backend.walked(problem)
        parameters = sum(weight.sum() for weight in problem.cell.parameters())
        return type(result)(**{**vars(result), "states": result.states.detach() + 0 * parameters})

    found = verify(solve, op="solve").failures
    assert "the gradient of the backend by weight" in found["solve_gradients"]
    assert "solve_states" not in found


def test_cells_that_a_backend_of_solve_does_not_claim_are_passed_over(verify):
    solved = []

    def solve(problem, config):
        solved.append(problem.structure.__name__)
        return torch_backend.solve(problem, config)

    found = verify(solve, op="solve", reasons=lambda request: ("it is wide",) if request.option("structure") == "Dense" else ())
    assert found.failures == {}
    assert set(solved) == {"Diagonal"}


def test_a_backend_of_solve_that_claims_no_cell_is_held_to_nothing_and_says_why(verify):
    found = verify(torch_backend.solve, op="solve", reasons=lambda request: ("it is no cell",) if request.option("structure") else ())
    assert found.failures == {}
    (result,) = (result for result in found.results if result.check == "solve_states")
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert "serves none of the cells that there are: it is no cell" in result.detail
