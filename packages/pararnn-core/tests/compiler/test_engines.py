"""An engine of somebody else: its backend of `solve` names it, and it then solves, decodes and shows its sources as those of the core do."""

import json

import pytest
import torch
from click.testing import CliRunner
from reference_engine import ReferenceEngine
from toy_cells import Gate

from pararnn import BackendError, NewtonConfig, ParaRNN
from pararnn.cli import main
from pararnn.compiler.engines import engine_named, engines, find_engine
from pararnn.compiler.serving import serve
from pararnn.distributions import discover
from pararnn.registry import Registry, using


@pytest.fixture
def theirs(candidate, backend, cell, objects):
    """Their engine, while its plugin is installed."""
    made = ReferenceEngine()

    def solve(problem, config):
        return serve(made, problem, config)

    def example(batch, length, *, seed):
        return Gate(3, 4), torch.randn(batch, length, 3, dtype=torch.float64)

    # The backend `plain` has the same implementation, so it has this engine too.
    solve.engine = lambda: made
    objects.implementation, objects.example = solve, example
    backends = [backend("theirs", op="solve", priority=1000), backend("plain", op="solve"), backend("broken", op="solve", target="no:one")]
    offers = candidate(pararnn_register_backends=backends, pararnn_register_cells=[cell("Gate")])
    core = [one for one in discover() if one.distribution == "pararnn-core"]
    with using(Registry.of([*core, offers], environ={})):
        yield made


def layer():
    torch.manual_seed(0)
    return ParaRNN(Gate(3, 4, dtype=torch.float32), config=NewtonConfig(backend="theirs"))


def test_it_is_found_by_the_name_of_its_backend_and_broken_ones_are_passed_over(theirs):
    assert engine_named("theirs") is theirs
    assert next(engines())[1] is theirs
    assert {"theirs", "triton", "native"} <= {name for name, _ in engines()}
    assert find_engine("torch") is None


def test_what_is_no_engine_is_refused_with_those_that_are(theirs):
    with pytest.raises(BackendError, match="'torch' is no engine; there are theirs"):
        engine_named("torch")
    result = CliRunner().invoke(main, ["compile", "Gate", "--engine", "nobody"])
    assert result.exit_code == 2
    assert "'nobody' is no engine" in " ".join(result.output.split())


def test_it_solves_and_decodes(theirs):
    model, x = layer(), torch.randn(2, 5, 3)
    with torch.no_grad():
        output, (result,) = model.solve(x)
        decoder = model.decoder(2)
        steps = torch.stack([decoder.step(sample).clone() for sample in x.unbind(1)], dim=1)
    assert result.backend == "reference"
    assert theirs.solves == 1
    assert "reference" in decoder.explain()
    torch.testing.assert_close(steps, output)


def test_auto_decodes_with_the_one_of_highest_priority_for_the_device(theirs):
    model = layer()
    model.config = NewtonConfig()
    decoder = model.decoder(2)
    with torch.no_grad():
        decoder.step(torch.randn(2, 3))
    assert "layer 0, Gate: reference" in decoder.explain()


def test_the_command_shows_its_sources(theirs):
    document = json.loads(CliRunner().invoke(main, ["compile", "Gate", "--show", "--json", "--engine", "theirs"]).stdout)
    assert document["engines"]["theirs"]["serves"]
    assert "tanh" in document["engines"]["theirs"]["source"]
