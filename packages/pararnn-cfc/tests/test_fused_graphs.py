"""Graphs of `torch.compile` on a CPU that hold a ParaCfC: what they say of inputs at fault, of nothing to solve, and whose kernels they find."""

import sys
import types

import pytest
import torch

from pararnn import InputError, NewtonConfig, ParaRNN
from pararnn.compiler.native import toolchain
from pararnn.compiler.native.backend import solve as solve_native
from pararnn.distributions import Candidate, discover
from pararnn.hookspecs import hookimpl
from pararnn.registry import Registry, using
from pararnn.specs import BackendSpec
from pararnn_cfc import ParaCfC, fused_setting

pytestmark = [pytest.mark.skipif(bool(toolchain.reasons()), reason="there is no compiler"), pytest.mark.usefixtures("shared_cache")]

GENERAL = NewtonConfig(backend="pararnn-core:native")
LAYERS = [
    pytest.param({}, {}, id="fused"),
    pytest.param({}, {"config": GENERAL}, id="general"),
    pytest.param({"gate_mix": "diag_h"}, {}, id="diag_h"),
]
layers = pytest.mark.parametrize(("cell", "options"), LAYERS)


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch.compiler.reset()
    fused_setting.setting.cache_clear()
    yield
    torch.compiler.reset()
    fused_setting.setting.cache_clear()


def samples(rows=2, length=9):
    return torch.cat((torch.randn(rows, length, 2), 0.05 + torch.rand(rows, length, 1)), dim=-1)


def graph_of(layer):
    return torch.compile(layer, fullgraph=True, backend="aot_eager")


def said(layer, *arguments):
    """The text of the `InputError` that it raises."""
    with pytest.raises(InputError) as caught:
        layer(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("gap", [-1.0, float("nan")], ids=str)
def test_a_gap_that_cannot_be_raises_in_a_fused_graph_what_it_raises_outside(gap):
    layer, x = ParaRNN(ParaCfC(3, 4)), samples()
    graph = graph_of(layer)
    assert graph(x).isfinite().all()
    x[0, 4, 2] = gap
    assert said(graph, x) == said(layer, x)
    assert "a time gap is" in said(graph, x)


@layers
@pytest.mark.parametrize("gap", [-1.0, float("nan")], ids=str)
def test_a_gap_that_cannot_be_is_an_error_in_any_graph_with_a_kernel(cell, options, gap):
    layer, x = ParaRNN(ParaCfC(3, 4, **cell), **options), samples()
    x[0, 4, 2] = gap
    said(graph_of(layer), x)


@layers
def test_features_that_are_not_finite_raise_in_a_graph_what_they_raise_outside(cell, options):
    layer, x = ParaRNN(ParaCfC(3, 4, **cell), **options), samples()
    x[1, 5, 0] = torch.nan
    assert said(graph_of(layer), x) == said(layer, x)
    assert "batch 1, step 5" in said(layer, x)


def test_packed_sequences_raise_in_a_graph_what_they_raise_outside():
    layer, x, ends = ParaRNN(ParaCfC(3, 4)), samples(1, 12), torch.tensor((0, 5, 5, 12))
    x[0, 3, 0] = torch.nan
    assert said(graph_of(layer), x, None, ends) == said(layer, x, None, ends)


def test_a_layer_without_bias_raises_in_a_graph_what_it_raises_outside():
    layer, x = ParaRNN(ParaCfC(3, 4, max_recurrent_norm=None)), samples()
    layer.layers[0].W_x.bias = None
    x[0, 3, 0] = torch.nan
    assert said(graph_of(layer), x) == said(layer, x)


@pytest.mark.parametrize("gate_mix", ["input", "diag_h"])
def test_a_negative_gap_makes_nan_in_a_graph_without_a_kernel(gate_mix):
    layer, x = ParaRNN(ParaCfC(3, 4, gate_mix=gate_mix), solver="sequential"), samples()
    x[0, 4, 2] = -1
    states = graph_of(layer)(x)
    assert states[0, 4:].isnan().all()
    torch.testing.assert_close((states[0, :4], states[1]), (layer(x[:1, :4])[0], layer(x[1:])[0]))


def test_gaps_have_the_gradient_in_a_graph_that_they_have_outside():
    layer, x = ParaRNN(ParaCfC(3, 4, dtype=torch.float64), solver="sequential"), samples().double()
    x[0, 2, 2], x[0, 3, 2] = 0.0, 1e-5
    x.requires_grad_()
    found = [torch.autograd.grad(run(x).square().sum(), x)[0] for run in (graph_of(layer), layer)]
    torch.testing.assert_close(*found)


@layers
@pytest.mark.parametrize("shape", [(2, 0), (0, 9), (0, 0)], ids=str)
def test_nothing_to_solve_gives_in_a_graph_what_it_gives_outside(cell, options, shape):
    layer = ParaRNN(ParaCfC(3, 4, **cell), return_hidden=True, **options)
    x, h0 = samples(*shape).requires_grad_(), torch.randn(shape[0], 4, requires_grad=True)
    found = []
    for solve in (graph_of(layer), layer):
        output, (final,) = solve(x, h0)
        loss = output.sum() + final.square().sum()
        found.append((output, final, *torch.autograd.grad(loss, [x, h0, *layer.parameters()], allow_unused=True, materialize_grads=True)))
    torch.testing.assert_close(*found)
    assert found[0][0].shape == (*shape, 4)


def test_no_step_in_packed_sequences_gives_in_a_graph_what_it_gives_outside():
    layer, x, ends = ParaRNN(ParaCfC(3, 4), return_hidden=True), samples(1, 0), torch.tensor((0, 0, 0))
    torch.testing.assert_close(graph_of(layer)(x, None, ends), layer(x, None, ends))


def test_lengths_that_leave_samples_over_are_an_error_in_a_graph_too():
    layer, x, ends = ParaRNN(ParaCfC(3, 4)), samples(1, 5), torch.tensor((0,))
    graph = graph_of(layer)
    for run in (graph, layer):
        with pytest.raises(InputError):
            run(x, None, ends)


@pytest.fixture
def namesake(monkeypatch):
    """A backend of `solve` of other people that is called `native` too."""
    module = types.ModuleType("their_backends")
    module.solve, module.reasons, module.probe = lambda problem, config: solve_native(problem, config), lambda request: (), lambda: None
    monkeypatch.setitem(sys.modules, "their_backends", module)
    spec = BackendSpec(
        name="native",
        op="solve",
        target="their_backends:solve",
        reasons="their_backends:reasons",
        probe="their_backends:probe",
        priority=1,
        summary="",
    )
    hooks = types.ModuleType("their_hooks")
    hooks.pararnn_register_backends = hookimpl(lambda: [spec])
    theirs = Candidate(name="theirs", distribution="theirs", version="1", load=lambda: hooks)
    with using(Registry.of([*discover(), theirs], environ={})) as registry:
        yield registry


@pytest.mark.parametrize("backend", ["auto", "pararnn-cfc:native", "pararnn-core:native"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_others_may_call_a_backend_as_the_core_calls_its_engine(namesake, backend, compiled):
    assert {"pararnn-core:native", "theirs:native"} <= set(namesake.backends("solve"))
    layer = ParaRNN(ParaCfC(3, 4), config=NewtonConfig(backend=backend))
    # Long enough for `auto` to compile.
    x = samples(2, 2000)
    states = (graph_of(layer) if compiled else layer)(x)
    torch.testing.assert_close(states, ParaRNN(layer.layers[0], solver="sequential")(x), rtol=1e-4, atol=1e-5)
    assert layer.solve(x)[1][0].backend == "native"
