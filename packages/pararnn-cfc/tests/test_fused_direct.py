"""Solves that were launched before are launched by addresses; whatever lies elsewhere or otherwise than then has to be right all the same."""

import copy
import os

import pytest
import torch
from torch.nn.utils import parametrize

from pararnn import NewtonConfig, ParaRNN, newton_apply
from pararnn.compiler.gpu import backward, forward
from pararnn.conformance.by_address import launch_by_address
from pararnn.registry import installed
from pararnn.selection import clear_cache
from pararnn_cfc import ParaCfC, fused_again, fused_direct, fused_setting, fused_step

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
DEVICES = [*(["cpu"] if INTERPRETED else []), pytest.param("cuda", marks=pytest.mark.gpu)]
FUSED, PLAIN = NewtonConfig(backend="triton", interval=4), NewtonConfig(backend="torch")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def counted(monkeypatch, device):
    """Where the interpreter stands in for a GPU, it is given addresses too; gives how many arguments each such launch had."""
    torch.manual_seed(0)
    for module, name in (
        (forward, "_prepared"),
        (backward, "_prepared"),
        (fused_direct, "_solves"),
        (fused_direct, "_gradients"),
        (fused_step, "_steps"),
    ):
        monkeypatch.setattr(module, name, {})
    monkeypatch.setattr(fused_again, "DEVICES", {"cpu", "cuda"})
    yield launch_by_address(monkeypatch) if device == "cpu" else None
    clear_cache()


def cell_on(device, state=4):
    cell = ParaCfC(5, state, device=device)
    with torch.no_grad():
        cell.u[::3] = 0.7
    return cell


def samples(device, batch=2, length=12):
    return torch.cat((torch.randn(batch, length, 4), 0.05 + torch.rand(batch, length, 1)), dim=-1).to(device)


def found(cell, x, config, **given):
    states = newton_apply(cell, x, config, **given)
    starts = [start for start in given.values() if start is not None and start.requires_grad]
    cotangent = torch.linspace(-1, 1, states.numel(), device=x.device).view_as(states)
    return states, *torch.autograd.grad(states, (*cell.parameters(), *starts), cotangent)


def agree(cell, x, **given):
    torch.testing.assert_close(found(cell, x, FUSED, **given), found(cell, x, PLAIN, **given), **CLOSE)


def test_later_solves_equal_the_plain_solver(device, counted):
    cell = cell_on(device)
    for _ in range(3):
        agree(cell, samples(device))
    # One launch of the forward pass in each but the first, two of the backward pass.
    assert counted is None or len(counted) == 6


def test_a_state_may_be_given_or_not(device):
    cell = cell_on(device)
    for turn in range(4):
        start = torch.rand(2, 4, device=device).requires_grad_() if turn % 2 else None
        agree(cell, samples(device), h0=start)


def test_samples_may_need_a_gradient_or_not(device):
    cell = cell_on(device)
    for turn in range(4):
        x, gradients = samples(device).requires_grad_(turn % 2 == 1), []
        sources = [*cell.parameters(), *([x] if x.requires_grad else [])]
        for config in (FUSED, PLAIN):
            gradients.append(torch.autograd.grad(newton_apply(cell, x, config).square().sum(), sources))
        torch.testing.assert_close(*gradients, **CLOSE)


def test_weights_may_be_edited_replaced_and_bare_of_biases(device):
    cell = cell_on(device)
    agree(cell, samples(device))
    with torch.no_grad():
        cell.u.mul_(-0.5)
        cell.W_x.weight.add_(0.1)
    agree(cell, samples(device))
    cell.u = torch.nn.Parameter(torch.linspace(-1, 1, 4, device=device))
    agree(cell, samples(device))
    cell.W_x.bias = None
    for _ in range(2):
        agree(cell, samples(device))


@pytest.mark.parametrize(
    "lie", [lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), lambda x: torch.cat((x, x), -1)[..., :5]], ids=["time", "wide"]
)
def test_samples_may_lie_apart(device, lie):
    cell = cell_on(device)
    for turn in range(4):
        x = samples(device)
        agree(cell, lie(x) if turn % 2 else x)


def test_tensors_may_begin_anywhere(device):
    cell = cell_on(device)
    agree(cell, samples(device))
    for _ in range(2):
        x = samples(device)
        shifted = torch.empty(x.numel() + 1, device=device)[1:].view_as(x).copy_(x)
        agree(cell, shifted)
    cell.u = torch.nn.Parameter(torch.linspace(-1, 1, 5, device=device)[1:])
    for _ in range(2):
        agree(cell, samples(device))


def test_a_graph_that_is_kept_is_differentiated_again(device):
    cell, x = cell_on(device), samples(device)
    states = newton_apply(cell, x, FUSED)
    first, second = (torch.autograd.grad(states.square().sum(), list(cell.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_projections_that_are_not_kept_are_made_again(device, monkeypatch):
    cell, x = cell_on(device), samples(device)
    kept = found(cell, x, FUSED)
    monkeypatch.setattr(fused_direct, "KEPT", 0)
    assert all(torch.equal(*pair) for pair in zip(kept, found(cell, x, FUSED), strict=True))


CHANGES = {
    "a hook": lambda cell: cell.W_x.register_forward_hook(lambda module, given, output: 2 * output),
    "where it starts": lambda cell: setattr(cell, "initial_state", lambda batch: torch.full((batch, 4), 0.5, device=cell.u.device)),
    "its limit": lambda cell: setattr(cell, "max_recurrent_norm", 0.1),
    "its step": lambda cell: setattr(cell, "step", lambda state, drive: type(cell).step(cell, state, drive) / 2),
    "its weights": lambda cell: parametrize.register_parametrization(cell, "u", Half()),
}


class Half(torch.nn.Module):
    def forward(self, weight):
        return weight / 2


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_of_a_cell_that_was_solved_is_seen(device, change):
    cell, x = cell_on(device), samples(device)
    for _ in range(2):
        agree(cell, x)
    CHANGES[change](cell)
    for _ in range(2):
        agree(cell, x)


def test_what_is_remembered_is_forgotten_with_the_choices(device):
    cell, x = cell_on(device), samples(device)
    newton_apply(cell, x, FUSED)
    form = fused_again._form(cell, x, cell.W_x.weight, cell.W_x.bias, cell.u, None, FUSED)
    assert form in installed().memo
    clear_cache()
    assert fused_again.solve(cell, x, FUSED, None) is None


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_kernels_that_project_equal_the_plain_solver(device, bias, monkeypatch):
    monkeypatch.setattr(fused_setting, "MANY_STATES", 1)
    fused_setting.setting.cache_clear()
    cell = cell_on(device)
    if not bias:
        cell.W_x.bias = None
    for turn in range(4):
        agree(cell, samples(device), h0=torch.rand(2, 4, device=device).requires_grad_() if turn % 2 else None)
    fused_setting.setting.cache_clear()


@pytest.mark.parametrize("frozen", ["u", "W_x.weight", "W_x.bias"])
def test_a_weight_may_be_frozen(device, frozen):
    cell = cell_on(device)
    agree(cell, samples(device))
    cell.get_parameter(frozen).requires_grad_(False)
    free = [weight for weight in cell.parameters() if weight.requires_grad]
    x = samples(device)
    gradients = [torch.autograd.grad(newton_apply(cell, x, config).square().sum(), free) for config in (FUSED, PLAIN)]
    torch.testing.assert_close(*gradients, **CLOSE)


def test_packed_sequences_are_served(device):
    cell, ends = cell_on(device), torch.tensor((0, 5, 5, 12), device=device)
    for _ in range(3):
        agree(cell, samples(device, 1), cu_seqlens=ends)


@pytest.mark.parametrize("graph", ["auto", "never"])
def test_a_decoder_steps_as_the_layer_does(device, graph):
    layer, x = ParaRNN(cell_on(device), config=NewtonConfig(backend="triton")), samples(device, 3, 5)
    decoder = layer.decoder(3, graph=graph)
    outputs = torch.stack([decoder.step(x[:, time].contiguous()).clone() for time in range(5)], 1)
    torch.testing.assert_close(outputs, ParaRNN(layer.layers[0], solver="sequential")(x), **CLOSE)
    assert "ParaCfC: triton" in decoder.explain()


def test_steps_equal_the_layer_with_and_without_gradients(device):
    layer, x = ParaRNN(cell_on(device), config=NewtonConfig(backend="triton")), samples(device, 3, 5)
    truth = ParaRNN(layer.layers[0], solver="sequential")(x)
    for needs_grad in (True, False):
        outputs, states = [], None
        with torch.set_grad_enabled(needs_grad):
            for time in range(5):
                output, states = layer.step(x[:, time], states)
                outputs.append(output)
        torch.testing.assert_close(torch.stack(outputs, 1), truth, **CLOSE)
        assert outputs[-1].requires_grad == needs_grad


@pytest.mark.gpu
def test_states_that_are_not_given_are_zero_on_every_stream_and_in_graphs(device):
    cell, x = ParaCfC(5, 12, device=device), samples(device)
    truth = newton_apply(cell, x, PLAIN)
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(newton_apply(cell, x, FUSED))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        captured = newton_apply(cell, x, FUSED)
    graph.replay()
    for states in (*found, captured):
        torch.testing.assert_close(states, truth, **CLOSE)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("layers", [1, 2])
def test_recorded_layers_train_as_the_layers_do(device, layers):
    torch.manual_seed(0)
    trained, x = ParaRNN(ParaCfC(5, 12, device=device), num_layers=layers), samples(device)
    made = copy.deepcopy(trained)
    recorded = torch.cuda.make_graphed_callables(made, (torch.rand_like(x),))
    for model in (recorded, trained):
        descent = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            descent.zero_grad()
            model(x * (1 + step)).square().mean().backward()
            descent.step()
    for one, other in zip(recorded.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


STARTS = {
    "channels apart": lambda device: torch.rand(4, 2, device=device).t(),
    "every other channel": lambda device: torch.rand(2, 8, device=device)[:, ::2],
    "one number for all channels": lambda device: torch.rand(2, 1, device=device).expand(2, 4),
}


@pytest.mark.parametrize("start", STARTS)
def test_initial_states_may_lie_apart(device, start):
    cell, x = cell_on(device), samples(device)
    for _ in range(3):
        agree(cell, x, h0=STARTS[start](device).detach().requires_grad_())


def test_views_that_negate_are_read_with_their_sign(device):
    cell, x = cell_on(device), samples(device)
    for _ in range(2):
        agree(cell, torch._neg_view(-x), h0=None)
        agree(cell, x, h0=torch._neg_view(-torch.rand(2, 4, device=device)))
        states = newton_apply(cell, x, FUSED)
        gradients = [torch.autograd.grad(states, list(cell.parameters()), grad, retain_graph=True) for grad in (one_for(states), -one_for(states))]
        flipped = torch.autograd.grad(states, list(cell.parameters()), torch._neg_view(one_for(states)))
        torch.testing.assert_close(flipped, gradients[1])


def one_for(states):
    return torch.linspace(-1, 1, states.numel(), device=states.device).view_as(states)


def test_layers_of_other_sizes_step_by_their_own_kernels(device):
    shared = torch.rand(1, 12, device=device)
    cells = [ParaCfC(5, 4, device=device), ParaCfC(5, 8, device=device)]
    cells[0].initial_state = lambda batch: shared[:, :4].expand(batch, 4)
    cells[1].initial_state = lambda batch: shared[:, 4:].expand(batch, 8)
    layer, x = ParaRNN(cells, config=NewtonConfig(backend="triton")), samples(device, 1, 4)
    decoder = layer.decoder(1)
    with torch.no_grad():
        steps = torch.stack([decoder.step(x[:, time].contiguous()).clone() for time in range(4)], 1)
        torch.testing.assert_close(steps, ParaRNN(cells, solver="sequential")(x), **CLOSE)


def test_a_layer_of_parallel_solves_is_recognised(device):
    layer, x = ParaRNN(cell_on(device), solver="newton", config=NewtonConfig(backend="triton")), samples(device)
    with torch.no_grad():
        layer(x)
        known = len(installed().memo)
        layer(x)
    assert len(installed().memo) == known
