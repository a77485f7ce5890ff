"""Compiled steps on a GPU as a user meets them: nothing waits for the device, graphs of CUDA and of `torch.compile` hold a whole layer."""

import copy

import pytest
import torch
from toy_cells import Gate, loop, weighted_sum
from waiting import nothing_waits

from pararnn import InputError, NewtonConfig, ParaRNN, Status, newton_apply

pytestmark = pytest.mark.gpu
SIZES = pytest.mark.parametrize(("batch", "length", "state"), [(4, 300, 96), (1, 5000, 16)], ids=["many lanes", "few lanes"])


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return lambda state, **options: ParaRNN(Gate(5, state, dtype=torch.float32).cuda(), **options)


def inputs(batch, length):
    return torch.randn(batch, length, 5, device="cuda", generator=torch.Generator("cuda").manual_seed(1))


def gradients(layer, x):
    return torch.autograd.grad(layer(x).square().mean(), [x, *layer.parameters()])


@SIZES
def test_auto_compiles_and_gives_the_states_and_gradients_of_the_loop(layer, batch, length, state):
    made, x = layer(state).double(), inputs(batch, length).double().requires_grad_()
    made.layers[0].state_dtype = torch.float64
    output, (result,) = made.solve(x)
    assert result.backend == "triton"
    truth = loop(made.layers[0], x)
    torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
    sources = [x, *made.parameters()]
    ours, expected = (torch.autograd.grad(weighted_sum(states.cpu()), sources) for states in (output, truth))
    torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@SIZES
def test_nothing_waits_for_the_device_until_the_record_is_asked_for(layer, batch, length, state):
    made, x = layer(state, return_hidden=True), inputs(batch, length).requires_grad_()
    made(x)[0].sum().backward()
    with nothing_waits():
        output, (final,) = made(x)
        (output.sum() + final.sum()).backward()
        _, (result,) = made.solve(x)
    assert result.status in (Status.CONVERGED, Status.WALKED)


def test_packed_sequences_told_apart_on_the_host_wait_for_nothing_either(layer):
    made, x, offsets = layer(64, return_hidden=True), inputs(1, 700).requires_grad_(), torch.tensor((0, 300, 300, 301, 700))
    made(x, cu_seqlens=offsets)[0].sum().backward()
    with nothing_waits():
        output, (final,) = made(x, cu_seqlens=offsets)
        (output.sum() + final.sum()).backward()


@SIZES
def test_a_cuda_graph_holds_forward_and_backward(layer, batch, length, state):
    made, x = layer(state), inputs(batch, length).requires_grad_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients(made, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = gradients(made, x)
    with torch.no_grad():
        x.copy_(inputs(batch, length).flip(1))
    graph.replay()
    found = [gradient.clone() for gradient in recorded]
    assert all(torch.equal(one, other) for one, other in zip(found, gradients(made, x), strict=True))


# Torch's own recording runs backward on another stream first.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@SIZES
def test_a_recorded_layer_trains_as_the_layer_does(layer, batch, length, state):
    made, x = layer(state), inputs(batch, length)
    trained = copy.deepcopy(made)
    recorded = torch.cuda.make_graphed_callables(made, (torch.randn_like(x),))
    for model in (recorded, trained):
        descent = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            descent.zero_grad()
            model(x * (1 + step)).square().mean().backward()
            descent.step()
    assert all(torch.equal(one, other) for one, other in zip(recorded.parameters(), trained.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
# An empty graph is what torch keeps its memory by.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@SIZES
def test_torch_compile_records_a_layer_where_it_is_to_reduce_overhead(layer, batch, length, state):
    made = layer(state)
    torch.compiler.reset()
    compiled = torch.compile(made, mode="reduce-overhead", fullgraph=True)
    for step in range(4):
        x = inputs(batch, length).mul_(1 + step).requires_grad_()
        torch.compiler.cudagraph_mark_step_begin()
        output = compiled(x)
        found = [one.clone() for one in torch.autograd.grad(output.square().mean(), [x, *made.parameters()])]
        torch.testing.assert_close(output, made(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, [*gradients(made, x)], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@SIZES
def test_torch_compile_makes_one_graph_of_a_layer(layer, batch, length, state):
    made, x = layer(state), inputs(batch, length).requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True)
    torch.testing.assert_close(compiled(x), made(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(compiled, x), gradients(made, x), rtol=1e-4, atol=1e-5)


def test_offsets_on_the_gpu_cannot_be_recorded_and_say_where_they_should_lie(layer):
    made, x, offsets = layer(64), inputs(1, 700), torch.tensor((0, 300, 300, 301, 700), device="cuda")
    made(x, cu_seqlens=offsets)
    with pytest.raises(InputError, match=r"keep it on the CPU"), torch.cuda.graph(torch.cuda.CUDAGraph()), torch.no_grad():
        made(x, cu_seqlens=offsets)


def test_packed_sequences_are_those_of_each_alone(layer):
    made, x, offsets = layer(64), inputs(1, 700), (0, 300, 300, 301, 700)
    packed = newton_apply(made.layers[0], x, NewtonConfig(backend="triton"), cu_seqlens=torch.tensor(offsets))
    alone = [made(x[:, start:end]) for start, end in ((0, 300), (300, 301), (301, 700))]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=1e-5, atol=1e-5)


def test_inputs_that_are_not_finite_are_found_by_whoever_asks(layer):
    made, x = layer(64), inputs(2, 300)
    x[1, 100, 0] = torch.nan
    _, (result,) = made.solve(x)
    assert result.status is Status.NOT_FINITE
