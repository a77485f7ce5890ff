"""`CfC` as a drop-in for `ncps.torch.CfC`: same weights in, same numbers out, for every way of calling that works there."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from pararnn_cfc.cfc import CfC

# The oracle is an extra of its own; without it the matrix sessions still run these tests.
ncps_torch = pytest.importorskip("ncps.torch")
ncps_wirings = pytest.importorskip("ncps.wirings")
NcpsCfC = ncps_torch.CfC
AutoNCP = ncps_wirings.AutoNCP
FullyConnected = ncps_wirings.FullyConnected
Random = ncps_wirings.Random

EXACT = {"rtol": 0, "atol": 0}
SAME = {"rtol": 0, "atol": 1e-6}
FEATURES = 4

NETWORKS = {
    "default": lambda: ((FEATURES, 6), {}),
    "pure": lambda: ((FEATURES, 6), {"mode": "pure"}),
    "no_gate": lambda: ((FEATURES, 6), {"mode": "no_gate"}),
    "deep-silu": lambda: ((FEATURES, 6), {"activation": "silu", "backbone_layers": 3, "backbone_units": 16, "backbone_dropout": 0.3}),
    "no-backbone": lambda: ((FEATURES, 6), {"backbone_layers": 0}),
    "projected": lambda: ((FEATURES, 6, 2), {}),
    "mixed": lambda: ((FEATURES, 6), {"mixed_memory": True}),
    "mixed-pure-projected": lambda: ((FEATURES, 6, 2), {"mixed_memory": True, "mode": "pure"}),
    "auto-ncp": lambda: ((FEATURES, AutoNCP(12, 3)), {}),
    "auto-ncp-mixed-projected": lambda: ((FEATURES, AutoNCP(12, 3), 2), {"mixed_memory": True}),
    "fully-connected-pure": lambda: ((FEATURES, FullyConnected(6)), {"mode": "pure"}),
    "fully-connected-three-outputs": lambda: ((FEATURES, FullyConnected(6, 3)), {}),
    "random-no-gate": lambda: ((FEATURES, Random(6, sparsity_level=0.5)), {"mode": "no_gate"}),
}


@pytest.fixture(params=NETWORKS, ids=str)
def network(request):
    """A builder of (ncps model, our model with its weights), both in evaluation mode."""

    def build(solver="sequential", **overrides):
        torch.manual_seed(1)
        positional, keywords = NETWORKS[request.param]()
        reference = NcpsCfC(*positional, **keywords, **overrides)
        with torch.no_grad():
            for parameter in reference.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        positional, keywords = NETWORKS[request.param]()
        ours = CfC(*positional, **keywords, **overrides, solver=solver)
        ours.load_state_dict(reference.state_dict())
        return reference.eval(), ours.eval()

    return build


def assert_same(ours, reference, tolerance=SAME):
    output, state = ours
    expected, expected_state = reference
    torch.testing.assert_close(output, expected, **tolerance)
    assert type(state) is type(expected_state)
    torch.testing.assert_close(state, expected_state, **tolerance)


def start(model, batch):
    state = 0.5 * torch.randn(*batch, model.state_size)
    return (state, torch.randn(*batch, model.state_size)) if model.mixed_memory else state


def test_equal_seeds_give_the_weights_of_ncps_under_the_same_names(request, network):
    name = request.node.callspec.params["network"]
    positional, keywords = NETWORKS[name]()
    torch.manual_seed(5)
    expected = NcpsCfC(*positional, **keywords).state_dict()
    positional, keywords = NETWORKS[name]()
    torch.manual_seed(5)
    weights = CfC(*positional, **keywords).state_dict()
    assert weights.keys() == expected.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(weight, expected[key], **EXACT)


@pytest.mark.parametrize("solver", ["sequential", "newton", "auto"])
@pytest.mark.parametrize("return_sequences", [True, False], ids=["sequence", "last"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
def test_batched_calls_give_the_numbers_of_ncps(network, batch_first, return_sequences, solver):
    reference, ours = network(solver, batch_first=batch_first, return_sequences=return_sequences)
    x = torch.randn(3, 7, FEATURES) if batch_first else torch.randn(7, 3, FEATURES)
    assert_same(ours(x), reference(x))


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
def test_a_given_state_gives_the_numbers_of_ncps(network, batch_first):
    reference, ours = network(batch_first=batch_first)
    x = torch.randn(3, 7, FEATURES) if batch_first else torch.randn(7, 3, FEATURES)
    state = start(ours, (3,))
    assert_same(ours(x, state), reference(x, state))


@pytest.mark.parametrize("with_gaps", [False, True], ids=["regular", "irregular"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
def test_unbatched_calls_give_the_numbers_of_ncps(network, batch_first, with_gaps):
    reference, ours = network(batch_first=batch_first)
    x, state = torch.randn(7, FEATURES), start(ours, ())
    gaps = 2 * torch.rand(7) if with_gaps else None
    assert_same(ours(x, state, gaps), reference(x, state, gaps))
    assert_same(ours(x, timespans=gaps), reference(x, timespans=gaps))


def test_an_unbatched_last_output_gives_the_numbers_of_ncps(network):
    reference, ours = network(return_sequences=False)
    x = torch.randn(7, FEATURES)
    assert_same(ours(x), reference(x))


@pytest.mark.parametrize("solver", ["sequential", "newton"])
@pytest.mark.parametrize("width", [(), (1,)], ids=["time", "time-1"])
def test_gaps_of_a_batch_of_one_give_the_numbers_of_ncps(network, width, solver):
    reference, ours = network(solver)
    x, gaps = torch.randn(1, 7, FEATURES), 2 * torch.rand(1, 7, *width)
    assert_same(ours(x, timespans=gaps), reference(x, timespans=gaps))


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
@pytest.mark.parametrize("width", [(), (1,)], ids=["time", "time-1"])
def test_gaps_shared_by_a_batch_give_the_numbers_of_ncps(network, width, batch_first):
    reference, ours = network(batch_first=batch_first)
    x = torch.randn(3, 7, FEATURES) if batch_first else torch.randn(7, 3, FEATURES)
    gaps = 2 * torch.rand(1, 7, *width) if batch_first else 2 * torch.rand(7, 1, *width)
    assert_same(ours(x, timespans=gaps), reference(x, timespans=gaps))


def test_gaps_for_the_time_axis_alone_give_the_numbers_of_ncps(network):
    reference, ours = network(batch_first=False)
    x, gaps = torch.randn(7, 3, FEATURES), 2 * torch.rand(7)
    assert_same(ours(x, timespans=gaps), reference(x, timespans=gaps))


@pytest.mark.parametrize("name", ["default", "pure", "mixed", "fully-connected-pure"])
def test_one_gap_for_each_unit_gives_the_numbers_of_ncps(name):
    positional, keywords = NETWORKS[name]()
    reference = NcpsCfC(*positional, **keywords)
    positional, keywords = NETWORKS[name]()
    ours = CfC(*positional, **keywords)
    ours.load_state_dict(reference.state_dict())
    x, gaps = torch.randn(3, 7, FEATURES), 2 * torch.rand(3, 7, 6)
    assert_same(ours(x, timespans=gaps), reference(x, timespans=gaps))


@pytest.mark.parametrize("solver", ["sequential", "newton"])
def test_gradients_of_weights_and_inputs_are_those_of_ncps(network, solver):
    reference, ours = network(solver)
    reference, ours = reference.double(), ours.double()
    x = torch.randn(1, 7, FEATURES, dtype=torch.float64)
    gaps = torch.rand(1, 7, dtype=torch.float64)
    state = start(ours, (1,))
    state = tuple(part.double() for part in state) if isinstance(state, tuple) else state.double()
    gradients = []
    for model in (reference, ours):
        inputs = [x.clone().requires_grad_(), gaps.clone().requires_grad_()]
        output, last = model(inputs[0], state, inputs[1])
        loss = output.square().sum() + sum(part.sum() for part in (last if isinstance(last, tuple) else (last,)))
        loss.backward()
        named = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
        gradients.append(named | {"input": inputs[0].grad, "timespans": inputs[1].grad})
    expected, actual = gradients
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def test_a_long_parallel_solve_is_the_walk_with_its_gradients(network):
    _, model = network()
    model = model.double()
    x, gaps = torch.randn(2, 300, FEATURES, dtype=torch.float64), 2 * torch.rand(2, 300, dtype=torch.float64)
    outcomes = []
    for solver in ("sequential", "newton"):
        model.solver = solver
        model.zero_grad()
        output, _ = model(x, timespans=gaps)
        output.square().sum().backward()
        outcomes.append({name: weight.grad for name, weight in model.named_parameters()} | {"output": output.detach()})
    walked, solved = outcomes
    for name, value in solved.items():
        torch.testing.assert_close(value, walked[name], rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def test_double_precision_agrees_to_double_precision(network):
    reference, ours = network("newton")
    reference, ours = reference.double(), ours.double()
    x = torch.randn(1, 7, FEATURES, dtype=torch.float64)
    state = start(ours, (1,))
    state = tuple(part.double() for part in state) if isinstance(state, tuple) else state.double()
    output, _ = ours(x, state)
    torch.testing.assert_close(output, reference(x, state)[0], rtol=0, atol=1e-10)


def test_the_returned_state_continues_the_sequence(network):
    _, ours = network()
    x, gaps = torch.randn(3, 8, FEATURES), torch.rand(3, 8)
    whole, last = ours(x, timespans=gaps)
    first, state = ours(x[:, :5], timespans=gaps[:, :5])
    second, end = ours(x[:, 5:], state, gaps[:, 5:])
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, **SAME)
    torch.testing.assert_close(end, last, **SAME)


def test_copies_and_pickles_give_the_same_numbers(network):
    _, ours = network()
    x = torch.randn(3, 5, FEATURES)
    expected = ours(x)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same(twin(x), expected, EXACT)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert twin(x)[0].unique().numel() < expected[0].unique().numel()
    assert_same(ours(x), expected, EXACT)


def test_the_cell_of_a_network_with_mixed_memory_follows_its_parts():
    model = CfC(FEATURES, 6, mixed_memory=True)
    cell = model.cell
    assert model.cell is cell
    x = torch.randn(3, 5, FEATURES)
    before = model(x)[0]
    model.lstm = type(model.lstm)(FEATURES, 6)
    assert model.cell is not cell
    assert not torch.equal(model(x)[0], before)


def test_a_pickled_model_does_not_mention_ncps(network):
    _, ours = network()
    assert b"ncps.wirings" not in pickle.dumps(ours)


def test_weights_survive_a_file_and_load_back_into_ncps(network):
    reference, ours = network()
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    reference.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(3, 5, FEATURES)
    assert_same(ours(x), reference(x))


@pytest.mark.parametrize("mixed_memory", [False, True], ids=["plain", "mixed"])
def test_both_solvers_see_the_same_dropout(mixed_memory):
    torch.manual_seed(0)
    model = CfC(FEATURES, 6, mixed_memory=mixed_memory, backbone_units=16, backbone_layers=3, backbone_dropout=0.4).double().train()
    x = torch.randn(3, 20, FEATURES, dtype=torch.float64)
    outputs = []
    for solver in ("sequential", "newton"):
        model.solver = solver
        torch.manual_seed(9)
        outputs.append(model(x)[0])
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-8)
    model.eval()
    assert (model(x)[0] - outputs[0]).abs().max() > 1e-3


@pytest.mark.parametrize("mixed_memory", [False, True], ids=["plain", "mixed"])
def test_gradients_through_the_parallel_solve_pass_gradcheck(mixed_memory):
    torch.manual_seed(0)
    model = CfC(2, 3, mixed_memory=mixed_memory, backbone_units=4, solver="newton").double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    gaps = (0.5 + torch.rand(2, 4, dtype=torch.float64)).requires_grad_()
    state = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def run(x, gaps, state):
        output, last = model(x, (state, state) if mixed_memory else state, gaps)
        return (output, *last) if mixed_memory else (output, last)

    assert torch.autograd.gradcheck(run, (x, gaps, state), atol=1e-6)
