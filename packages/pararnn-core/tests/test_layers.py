"""`ParaRNN`: stacking, states of every layer, decoding, layouts, dropout, saving."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from toy_cells import DenseRNN, DiagonalGRU, SlotLSTM, Tanh, loop, weighted_sum

from pararnn import CellError, ConfigError, NewtonConfig, ParaRNN, ParaRNNError, ShapeError, SolveResult, Status, sequential_apply

SOLVERS = ("auto", "newton", "sequential")


def inputs(length=60, batch=2, seed=0):
    return torch.randn(batch, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def three_layers(**options):
    return ParaRNN([DiagonalGRU(3, 4), SlotLSTM(4, 5), DenseRNN(5, 6)], **options)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_stack_gives_what_its_loops_give_one_after_the_other(solver, training, tolerance):
    layer, x = three_layers(solver=solver).train(training), inputs()
    expected = x
    for cell in layer.layers:
        expected = cell.readout(loop(cell, expected))
    torch.testing.assert_close(layer(x), expected, **tolerance["states"])


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_of_a_stack_equal_the_loops(solver, tolerance):
    layer, x = three_layers(solver=solver), inputs().requires_grad_()
    expected = x
    for cell in layer.layers:
        expected = cell.readout(loop(cell, expected))
    sources = (x, *layer.parameters())
    ours, truth = (torch.autograd.grad(weighted_sum(output), sources) for output in (layer(x), expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


def test_only_the_output_is_returned_unless_states_are_asked_for():
    x = inputs()
    assert isinstance(three_layers()(x), torch.Tensor)
    output, states = three_layers(return_hidden=True)(x)
    assert output.shape == (2, 60, 6)
    assert isinstance(states, tuple)
    assert [tuple(state.shape) for state in states] == [(2, 4), (2, 10), (2, 6)]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_sequence_in_two_pieces_with_the_states_handed_on_is_the_whole(solver, tolerance):
    layer, x = three_layers(solver=solver, return_hidden=True), inputs()
    whole, last = layer(x)
    first, states = layer(x[:, :23])
    second, end = layer(x[:, 23:], states)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, **tolerance["states"])
    torch.testing.assert_close(end, last, **tolerance["states"])


def test_decoding_step_by_step_gives_the_outputs_of_the_whole(tolerance):
    layer, x = three_layers(return_hidden=True).eval(), inputs(12)
    whole, last = layer(x)
    states, outputs = None, []
    for sample in x.unbind(1):
        output, states = layer.step(sample, states)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, 1), whole, **tolerance["states"])
    torch.testing.assert_close(states, last, **tolerance["states"])


def test_decoding_starts_at_the_states_that_forward_returned(tolerance):
    layer, x = three_layers(return_hidden=True).eval(), inputs(12)
    whole, _ = layer(x)
    _, states = layer(x[:, :-1])
    output, _ = layer.step(x[:, -1], states)
    torch.testing.assert_close(output, whole[:, -1], **tolerance["states"])


def test_the_result_of_each_layer_can_be_had():
    output, results = three_layers(solver="newton").solve(inputs())
    assert output.shape == (2, 60, 6)
    assert all(isinstance(result, SolveResult) for result in results)
    assert [result.status for result in results] == [Status.CONVERGED] * 3
    assert all(result.iterations for result in results)


def test_guesses_from_the_last_solve_save_iterations(tolerance):
    layer, x = ParaRNN([DiagonalGRU(3, 4), SlotLSTM(4, 5)], config=NewtonConfig(interval=8)), inputs(400)
    output, results = layer.solve(x)
    again, warm = layer.solve(x, guesses=[result.states for result in results])
    assert all(after.iterations < before.iterations for after, before in zip(warm, results, strict=True))
    torch.testing.assert_close(again, output, **tolerance["states"])


def test_time_may_come_first(tolerance):
    layer, x = three_layers(), inputs()
    turned = ParaRNN(list(layer.layers), batch_first=False)
    torch.testing.assert_close(turned(x.transpose(0, 1)), layer(x).transpose(0, 1), **tolerance["states"])


def test_packed_sequences_pass_all_layers_as_if_alone(tolerance):
    layer, x = three_layers(return_hidden=True), inputs(batch=1)
    offsets = torch.tensor([0, 20, 20, 60])
    output, states = layer(x, cu_seqlens=offsets)
    first, first_states = layer(x[:, :20])
    second, second_states = layer(x[:, 20:])
    torch.testing.assert_close(output, torch.cat((first, second), dim=1), **tolerance["states"])
    for packed, one, zero, two in zip(states, first_states, layer.initial_state(1), second_states, strict=True):
        torch.testing.assert_close(packed, torch.cat((one, zero, two)), **tolerance["states"])


def test_dropout_acts_between_layers_while_training_only():
    layer, x = ParaRNN([DiagonalGRU(3, 4), DiagonalGRU(4, 4)], dropout=0.5), inputs()
    plain = ParaRNN(list(layer.layers))
    assert torch.equal(layer.eval()(x), plain(x))
    torch.manual_seed(1)
    dropped = layer.train()(x)
    assert not torch.equal(dropped, plain(x))
    torch.manual_seed(1)
    below = nn.functional.dropout(sequential_apply(layer.layers[0], x), 0.5)
    torch.testing.assert_close(dropped, loop(layer.layers[1], below), rtol=1e-10, atol=1e-10)


def test_dropout_leaves_the_last_layer_alone():
    layer, x = ParaRNN(DiagonalGRU(3, 4), dropout=1.0).train(), inputs()
    torch.testing.assert_close(layer(x), loop(layer.layers[0], x), rtol=1e-10, atol=1e-10)


class Square(Tanh):
    """A cell that can be stacked because it reads what it writes."""

    def reset_parameters(self):
        nn.init.normal_(self.weight, std=0.5)


class Widening(DiagonalGRU):
    def layer_above(self):
        return DiagonalGRU(self.state_size, self.state_size)


def test_layers_above_are_fresh_and_share_nothing():
    layer = ParaRNN(Square(3), num_layers=3)
    assert len({id(weight) for weight in layer.parameters()}) == 3
    assert not torch.equal(layer.layers[0].weight, layer.layers[1].weight)
    assert type(ParaRNN(Widening(3, 4), num_layers=2).layers[1]) is DiagonalGRU


def test_a_cell_that_cannot_be_stacked_says_so():
    with pytest.raises(CellError, match="cannot be stacked by num_layers"):
        ParaRNN(Tanh(3), num_layers=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "fast"}, "solver must be"),
        ({"dropout": 1.5}, "dropout must lie in"),
        ({"num_layers": 0}, "num_layers must be"),
        ({"num_layers": 1.0}, "num_layers must be"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_work_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        ParaRNN(DiagonalGRU(3, 4), **options)


def test_a_wrong_number_of_cells_or_states_is_refused():
    with pytest.raises(CellError, match="at least one cell"):
        ParaRNN([])
    with pytest.raises(ConfigError, match="2 cells were given"):
        ParaRNN([DiagonalGRU(3, 4), DiagonalGRU(4, 4)], num_layers=3)
    layer = three_layers()
    with pytest.raises(ShapeError, match="as the states of 3 layers; pass a list"):
        layer(inputs(), torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(ShapeError, match="guesses holds 1 tensors for 3 layers"):
        layer.solve(inputs(), guesses=[torch.zeros(2, 60, 4)])
    with pytest.raises(ShapeError, match="one sample a sequence"):
        layer.step(inputs())


def test_the_solver_is_what_was_asked_for():
    x = inputs()
    for solver, plan in (("newton", False), ("sequential", True)):
        _, (result,) = ParaRNN(DiagonalGRU(3, 4), solver=solver).solve(x)
        assert result.plan.walks is plan
    _, (result,) = ParaRNN(DiagonalGRU(3, 4), solver="newton", config=NewtonConfig(interval=7)).solve(x)
    assert result.plan.interval == 7


@pytest.mark.parametrize("save", ["state_dict", "deepcopy", "pickle", "torch.save", "safetensors"])
def test_a_layer_survives_being_copied_and_saved(save, tmp_path):
    layer, x = three_layers(), inputs()
    output = layer(x)
    if save == "state_dict":
        twin = three_layers()
        twin.load_state_dict(layer.state_dict())
    elif save == "deepcopy":
        twin = copy.deepcopy(layer)
    elif save == "pickle":
        twin = pickle.loads(pickle.dumps(layer))
    elif save == "torch.save":
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        twin = three_layers()
        twin.load_state_dict(torch.load(buffer, weights_only=True))
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_model(layer, tmp_path / "weights.safetensors")
        twin = three_layers()
        safetensors.load_model(twin, tmp_path / "weights.safetensors")
    assert torch.equal(twin(x), output)
    assert all(ours is not theirs for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True))


def test_a_deepcopy_trains_apart_from_its_original():
    layer, x = three_layers(), inputs()
    twin = copy.deepcopy(layer)
    twin(x).sum().backward()
    assert all(weight.grad is None for weight in layer.parameters())
    assert all(weight.grad is not None for weight in twin.parameters())


def test_training_and_walking_reach_the_same_weights():
    def trained(solver):
        torch.manual_seed(0)
        layer = ParaRNN([DiagonalGRU(3, 4), DiagonalGRU(4, 2)], solver=solver)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
        for step in range(5):
            optimiser.zero_grad()
            (layer(inputs(seed=step)) - 0.3).square().mean().backward()
            optimiser.step()
        return list(layer.parameters())

    torch.testing.assert_close(trained("newton"), trained("sequential"), rtol=1e-7, atol=1e-9)


def test_the_options_can_be_read_in_the_representation():
    assert "solver='newton', return_hidden=False, batch_first=True" in repr(ParaRNN(DiagonalGRU(3, 4), solver="newton"))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda cell, x: ParaRNN(3), "got int"),
        (lambda cell, x: ParaRNN(cell, config={"interval": 4}), "NewtonConfig"),
        (lambda cell, x: ParaRNN(cell)(x, 0.0), "got float"),
        (lambda cell, x: ParaRNN(cell).step([1.0]), "got list"),
        (lambda cell, x: ParaRNN(cell)(x[..., :2]), "(2, 9, 2)"),
    ],
    ids=["a number as cell", "a dict as config", "a number as state", "a list as sample", "too few inputs"],
)
def test_what_a_newcomer_gets_wrong_is_told_in_a_sentence(mistake, words):
    with pytest.raises(ParaRNNError) as caught:
        mistake(DenseRNN(3, 4), torch.randn(2, 9, 3, dtype=torch.float64))
    assert words in str(caught.value)
