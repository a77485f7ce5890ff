pytest_plugins = ["pytester"]

SPECS = """
    from pararnn.specs import CellSpec, StructureSpec

    CELL = CellSpec(name="Toy", target="toy_cells:Toy", example="toy_cells:example", summary="a toy")
    STRUCTURE = StructureSpec(
        name="matrices", target="pararnn.structures:Dense", example="pararnn.structures.examples:dense", summary="matrices"
    )
"""
CELLS = """
    import torch
    from torch import nn

    from pararnn import Diagonal

    class Toy(nn.Module):
        structure, state_size = Diagonal, 3

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-0.9, 0.9, 3, dtype=torch.float64))

        def initial_state(self, batch):
            return self.weight.new_zeros(batch, 3)

        def drive(self, x):
            return x

        def step(self, state, drive):
            return torch.tanh(self.weight * state + drive)

        def readout(self, states):
            return states

    def example(batch, length, *, seed):
        generator = torch.Generator().manual_seed(seed)
        return Toy(), torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)
"""
TESTS = """
    from specs import CELL, STRUCTURE

    from pararnn.conformance import parametrize_with_checks

    @parametrize_with_checks(CELL, STRUCTURE, "diagonal")
    def test_conformance(check):
        check()
"""


def run(pytester, **modules):
    pytester.makepyfile(specs=SPECS, **{"toy_cells": CELLS, "test_toy": TESTS, **modules})
    return pytester.runpytest_subprocess("-rA")


def test_each_check_of_each_subject_is_a_test(pytester):
    result = run(pytester)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*PASSED*Toy-parallel_equals_walk*", "*PASSED*matrices-composition*", "*PASSED*diagonal-scan_gradients*"])


def test_a_check_that_fails_is_a_test_that_fails_with_its_message(pytester):
    result = run(pytester, toy_cells=CELLS.replace("self.weight * state", "self.weight * state.flip(-1)"))
    assert result.parseoutcomes()["failed"] > 0
    result.stdout.fnmatch_lines(["*ConformanceError: the structure is wrong: channel * depends on channel *"])


def test_an_example_of_another_dtype_is_a_test_that_fails(pytester):
    result = run(pytester, toy_cells=CELLS.replace("generator=generator, dtype=torch.float64", "generator=generator"))
    result.stdout.fnmatch_lines(["*ConformanceError: x of the example is torch.float32*"])


def test_when_the_example_fails_only_its_own_test_does(pytester):
    result = run(pytester, toy_cells=CELLS.replace("return Toy(), torch", "return Nobody(), torch"))
    (failed,) = (line for line in result.outlines if line.startswith("FAILED"))
    assert "Toy-example" in failed
    result.stdout.fnmatch_lines(["SKIPPED*the check 'example' failed, and the others run on the example"])
