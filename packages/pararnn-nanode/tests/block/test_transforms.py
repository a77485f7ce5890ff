"""Blocks under the transforms of torch, copied, pickled, compiled and replicated."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from pararnn_nanode import NANODE, ConstantPath, ConvField, DenseField, DiagonalField, TrigPath

METHODS = ["euler", "midpoint", "heun", "rk4", "rk4_38", "reversible_heun", "alf"]


@pytest.mark.parametrize("method", METHODS)
def test_vmap_over_a_block_equals_the_block(make_block, state, method):
    block = make_block(method=method)
    torch.testing.assert_close(torch.vmap(block)(state), block(state))


def test_vmap_over_states_of_several_samples(make_block):
    block = make_block()
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(torch.vmap(block)(x), block(x))


@pytest.mark.parametrize("method", ["euler", "rk4", "reversible_heun"])
def test_vmap_over_parameters_is_an_ensemble(make_block, state, method):
    blocks = [make_block(method=method) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(blocks)
    together = torch.vmap(lambda p, b: torch.func.functional_call(blocks[0], (p, b), (state,)))(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([block(state) for block in blocks]))


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
def test_functional_call_differentiates_the_parameters_it_is_given(make_block, state, gradient):
    block, other = make_block(gradient=gradient), make_block()
    other(state).square().sum().backward()
    parameters = {name: parameter.detach().clone().requires_grad_() for name, parameter in other.named_parameters()}
    torch.func.functional_call(block, parameters, (state,)).square().sum().backward()
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(parameters[name].grad, parameter.grad)
    assert all(parameter.grad is None for parameter in block.parameters())


def test_per_sample_gradients_add_up_to_the_gradient(make_block, state):
    block = make_block()
    parameters = {name: parameter.detach() for name, parameter in block.named_parameters()}
    each = torch.vmap(torch.func.grad(lambda p, x: torch.func.functional_call(block, p, (x,)).square().sum()), in_dims=(None, 0))(parameters, state)
    block(state).square().sum().backward()
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
def test_gradients_of_gradients_are_right(method, gradient):
    block = NANODE(DenseField(2, TrigPath((2, 2), 1)), 3, method=method, gradient=gradient)
    x = torch.randn(2, requires_grad=True)

    def run(x, coefficients):
        return torch.func.functional_call(block, {"field.path.coefficients": coefficients}, (x,))

    inputs = (x, block.field.path.coefficients.detach().requires_grad_())
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_forward_mode_equals_reverse_mode(make_block, state):
    block = make_block(method="rk4")
    tangent = torch.randn_like(state)
    forward = torch.func.jvp(block, (state,), (tangent,))[1]
    backward = torch.einsum("bjci,ci->bj", torch.func.jacrev(block)(state), tangent)
    torch.testing.assert_close(forward, backward)


@pytest.mark.parametrize("options", [{}, {"method": "reversible_heun", "gradient": "reversible"}, {"method": "dopri5"}], ids=str)
def test_a_copy_made_before_and_after_a_backward_pass_works(make_block, state, options):
    block = make_block(**options)
    fresh = copy.deepcopy(block)
    block(state).sum().backward()
    used = copy.deepcopy(block)
    for twin in (fresh, used):
        assert torch.equal(twin(state), block(state))
        with torch.no_grad():
            next(twin.parameters()).zero_()
        assert not torch.equal(twin(state), block(state))


@pytest.mark.parametrize("options", [{}, {"method": "dopri5", "rtol": 1e-3}, {"output": [0.5, 1.0]}], ids=str)
def test_a_pickle_of_a_block_gives_the_same(make_block, state, options):
    block = make_block(**options)
    block(state).sum().backward()
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    for twin in (pickle.loads(pickle.dumps(block)), torch.load(file, weights_only=False)):
        assert torch.equal(twin(state), block(state))


def test_weights_load_into_another_block(make_block, state):
    block, other = make_block(), make_block()
    other.load_state_dict(block.state_dict())
    assert torch.equal(other(state), block(state))


@pytest.mark.parametrize("method", METHODS)
def test_a_block_compiles_into_one_graph(make_block, state, method):
    torch.compiler.reset()
    block = make_block(method=method, steps=5)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x, twin = state.clone().requires_grad_(), state.clone().requires_grad_()
    expected, found = block(x), compiled(twin)
    torch.testing.assert_close(found, expected)
    (weights,) = torch.autograd.grad(expected.sum(), block.field.path.coefficients, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), block.field.path.coefficients, retain_graph=True)[0], weights)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), twin)[0], torch.autograd.grad(expected.sum(), x)[0])


@pytest.mark.parametrize(
    ("call", "options"),
    [({"t": 0.5}, {}), ({"t": [0.3, 1.0]}, {}), ({}, {"output": "path"}), ({"u": torch.ones(3, 2)}, {})],
    ids=["end", "times", "path", "inputs"],
)
def test_a_block_with_times_or_inputs_compiles_into_one_graph(state, call, options):
    torch.compiler.reset()
    inputs = ConstantPath((4, 2)) if "u" in call else None
    block = NANODE(DenseField(4, TrigPath((4, 4), 1), input=inputs), 4, **options)
    call = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    torch.testing.assert_close(torch.compile(block, fullgraph=True, backend="aot_eager")(state, **call), block(state, **call))


@pytest.mark.parametrize(
    "make", [lambda: ConvField(3, 3, TrigPath((3, 3, 3, 3), 1)), lambda: DiagonalField(5, TrigPath(5, 1, gain=1.0))], ids=["conv", "diagonal"]
)
def test_other_fields_compile_into_one_graph(make):
    torch.compiler.reset()
    block = NANODE(make(), 3)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x))


@pytest.fixture
def process_group(tmp_path):
    """A process group of this process alone."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("needs torch.distributed with gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "options", [{}, {"gradient": "checkpoint"}, {"method": "reversible_heun", "gradient": "reversible"}, {"method": "dopri5"}], ids=str
)
@pytest.mark.usefixtures("process_group")
def test_a_replica_has_the_gradients_of_the_block(make_block, state, options):
    block = make_block(**options)
    replica = nn.parallel.DistributedDataParallel(copy.deepcopy(block))
    for _ in range(2):
        block.zero_grad()
        replica.zero_grad()
        block(state).sum().backward()
        replica(state).sum().backward()
    for ours, theirs in zip(block.parameters(), replica.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
