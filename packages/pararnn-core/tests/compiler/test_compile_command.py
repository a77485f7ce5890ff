"""`pararnn compile`: what it says of cells that compile, of those that do not, and of modules that are no cells."""

import json
import sys
from typing import NamedTuple

import pytest
import torch
from click.testing import CliRunner
from toy_cells import DenseRNN, Tanh, ToyCell

from pararnn.cli import main
from pararnn.distributions import discover
from pararnn.registry import Registry, using


class Leaky(Tanh):
    """A cell that says that it is linear."""

    is_linear = True

    def step(self, state, drive):
        return self.weight * state + drive


class GatedDrive(NamedTuple):
    gates: torch.Tensor
    elapsed: torch.Tensor


class Gated(ToyCell):
    """Operands of several kinds from several places."""

    def __init__(self, state_size):
        super().__init__(state_size)
        self.bias = torch.nn.Parameter(torch.zeros(2 * state_size))
        self.inner = Tanh(state_size)

    def drive(self, x):
        return GatedDrive(torch.cat((x, x), -1), x[..., :1])

    def step(self, state, drive):
        gate, candidate = (drive.gates + self.bias).chunk(2, -1)
        return torch.lerp(state, torch.tanh(candidate * self.inner.weight), torch.sigmoid(gate * drive.elapsed))


@pytest.fixture
def compile_(candidate, cell, objects):
    """Run `pararnn compile` beside a plugin whose cell is made by `build`."""

    def run(build, *arguments):
        def example(batch, length, *, seed):
            torch.manual_seed(seed)
            return build(), torch.randn(batch, length, 3, dtype=torch.float64)

        objects.example = example
        core = [one for one in discover() if one.distribution == "pararnn-core"]
        with using(Registry.of([*core, candidate(pararnn_register_cells=[cell("ToyCell")])], environ={})):
            return CliRunner().invoke(main, ["compile", "ToyCell", *arguments])

    return run


def test_a_step_that_compiles_is_said_to_with_what_it_reads(compile_):
    result = compile_(lambda: Tanh(3), "--json", "--dtype", "float64")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["compiles"]
    assert (document["operands"], document["captured"]) == (["element", "channel"], ["weight"])
    assert document["origins"] == ["drive", "self.weight"]
    assert set(document["engines"]) == {"triton", "native"}
    assert all(engine["serves"] == (not engine["reasons"]) for engine in document["engines"].values())


class Mixes(Tanh):
    """Channelwise as it says, and not as it computes."""

    def step(self, state, drive):
        return torch.flip(torch.cumsum(state, -1), (-1,)) + drive


def test_a_step_that_does_not_compile_is_told_every_obstacle_once(compile_):
    result = compile_(lambda: Mixes(3))
    assert result.exit_code == 1
    assert "cannot be compiled" in result.stdout
    for obstacle in ("cumsum (aten.cumsum.default) mixes channels", "flip (aten.flip.default) mixes channels"):
        assert result.stdout.count(obstacle) == 1
    document = json.loads(compile_(lambda: Mixes(3), "--json").stdout)
    assert not document["compiles"]
    assert len(document["obstacles"]) == 2
    assert all(set(engine["reasons"]) >= set(document["obstacles"]) for engine in document["engines"].values())


def test_of_a_step_that_is_not_channelwise_only_the_structure_is_told(compile_):
    result = compile_(lambda: DenseRNN(3, 4))
    assert result.exit_code == 1
    assert result.stdout.count("structure") == 2, "once where it says what it is, once what it should be"
    assert "its structure is Dense" in result.stdout
    assert json.loads(compile_(lambda: DenseRNN(3, 4), "--json").stdout)["obstacles"] == [
        "its structure is Dense, and kernels are made of channelwise steps, whose structure is Diagonal"
    ]


def test_a_linear_step_compiles_and_is_told_why_no_solve_uses_it(compile_):
    result = compile_(lambda: Leaky(3))
    assert result.exit_code == 0
    assert result.stdout.count("the cell is linear, and one scan solves it") == 1
    assert not any(engine["serves"] for engine in json.loads(compile_(lambda: Leaky(3), "--json").stdout)["engines"].values())


def test_one_engine_can_be_asked(compile_):
    document = json.loads(compile_(lambda: Tanh(3), "--json", "--engine", "native").stdout)
    assert list(document["engines"]) == ["native"]


def test_the_program_can_be_seen_without_colours_when_piped(compile_):
    result = compile_(lambda: Tanh(3), "--show")
    assert "tanh" in result.stdout
    assert "pull (costate, state, o0, o1)" in result.stdout
    assert "\x1b" not in result.stdout


def test_each_operand_is_shown_with_where_it_comes_from(compile_):
    shown = compile_(lambda: Gated(3), "--show", "--dtype", "float64").stdout
    assert "    o0, o1: element of drive.gates, which holds 2 numbers for each channel\n" in shown
    assert "    o2: step of drive.elapsed\n" in shown
    assert "    o3, o4: channel of self.bias, which holds 2 numbers for each channel\n" in shown
    assert "    o5: channel of self.inner.weight\n" in shown
    assert "element: a number for each step and channel; step: one for each step; channel: one for each channel" in shown


def test_a_module_that_is_no_cell_is_refused(compile_):
    result = compile_(lambda: torch.nn.Linear(3, 3))
    assert result.exit_code == 2
    assert "there is no step to compile" in result.stderr


def test_an_unknown_cell_is_refused_with_the_way_to_one_of_ones_own():
    result = CliRunner().invoke(main, ["compile", "Nobody"])
    assert result.exit_code == 2
    assert "Nobody" in result.stderr
    assert "module:attribute" in result.stderr


WRONG = {
    "a name that is not there": ("fake_objects:nobody", "'fake_objects:nobody', which cannot be imported"),
    "no seed": (lambda batch, length: None, "unexpected keyword argument 'seed'"),
    "another error": (lambda batch, length, *, seed: [][0], "IndexError: list index out of range; test_compile_command.py, line "),
    "no pair": (lambda batch, length, *, seed: Tanh(3), "gives a Tanh; it takes (batch, length, *, seed) and gives (cell, x)"),
}


@pytest.mark.parametrize("command", ["compile", "bench"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_example_is_one_sentence(candidate, cell, objects, name, command):
    example, told = WRONG[name]
    spec = cell("ToyCell")
    if isinstance(example, str):
        spec = type(spec)(name=spec.name, target=spec.target, summary=spec.summary, example=example)
    objects.example = example
    core = [one for one in discover() if one.distribution == "pararnn-core"]
    with using(Registry.of([*core, candidate(pararnn_register_cells=[spec])], environ={})):
        result = CliRunner().invoke(main, [command, "ToyCell"])
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert told in line


OWN = """
import torch
from toy_cells import Tanh as Imported


class Tanh(Imported):
    def __init__(self, input_size, state_size):
        super().__init__(state_size)
        self.project = torch.nn.Linear(input_size, state_size, dtype=torch.float64)

    def drive(self, x):
        return self.project(x)


cell = Tanh(5, 4)
number = 3


def as_an_example(batch, length, *, seed):
    return Tanh(5, 4), torch.zeros(batch, length, 5)


def make():
    return cell


def odd(name):
    return cell


def broken():
    raise KeyError("lost")


class Wide(Imported):
    def __init__(self):
        super().__init__(4)
        self.project = torch.nn.Parameter(torch.zeros(7, 4, dtype=torch.float64))

    def drive(self, x):
        return x @ self.project


class Said(Wide):
    input_size = 7


class Mistaken(Said):
    def step(self, state, drive):
        return state + no_such_name
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Run `pararnn compile` where a file `my_own_cells.py` lies."""
    (tmp_path / "my_own_cells.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_cells", raising=False)
    yield lambda name, *arguments: CliRunner().invoke(main, ["compile", name, *arguments])
    sys.modules.pop("my_own_cells", None)


@pytest.mark.parametrize("attribute", ["Tanh", "cell", "as_an_example", "make", "Said"])
def test_a_cell_that_is_not_installed_is_found_in_a_module_here(own, attribute):
    before = [*sys.path]
    document = json.loads(own(f"my_own_cells:{attribute}", "--json", "--dtype", "float64").stdout)
    assert document["compiles"]
    assert document["origins"] == ["drive", "self.weight"]
    assert sys.path == before


def test_a_mistake_in_the_step_is_one_sentence_with_its_place(own):
    result = own("my_own_cells:Mistaken")
    assert result.exit_code == 2
    assert "fails (NameError: name 'no_such_name' is not defined; my_own_cells.py, line " in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_file_does_for_the_module(own):
    assert "compiles" in own("my_own_cells.py:make").stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_own_cells:nobody", "has no attribute 'nobody'"),
        ("my_lost_cells:make", "No module named 'my_lost_cells'"),
        ("my_own_cells:number", "gives a int, which neither is a cell nor holds one as .cell"),
        ("my_own_cells:odd", "my_own_cells:odd takes (name); a class is called with (input_size, state_size)"),
        ("my_own_cells:broken", "my_own_cells:broken() fails (KeyError: 'lost'; my_own_cells.py, line "),
        ("my_own_cells:Wide", "my_own_cells:Wide gives no inputs, and the cell does not take (2, 8, 3) (RuntimeError: "),
    ],
)
def test_what_gives_no_cell_is_one_sentence(own, name, told):
    result = own(name)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
