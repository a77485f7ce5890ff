"""States and gradients of cells with several numbers a channel, on every engine; there is one gradient for each tensor."""

import pytest
import torch
from reference_engine import ReferenceEngine
from torch import nn
from toy_cells import ToyCell, loop, weighted_sum
from wide_cells import CELLS, Wide, assert_the_loop_is_met, everywhere, mixed, reference, solved, with_bias

from pararnn import DifferentiationError
from pararnn.compiler import columns

SHAPES = [(2, 19, 5), (3, 1, 1), (1, 23, 1)]


@everywhere
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_states_and_all_gradients_are_those_of_the_loop(place, name, shape):
    torch.manual_seed(0)
    (body, parts), (batch, length, size) = CELLS[name], shape
    x = torch.randn(batch, length, parts * size, dtype=torch.float64)
    assert_the_loop_is_met(place, Wide(body, size, parts), x, torch.randn(batch, size, dtype=torch.float64))


@everywhere
@pytest.mark.parametrize("interval", [4, "auto"], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions_stay_within_their_rounding(place, dtype, interval):
    torch.manual_seed(0)
    x = torch.randn(2, 21, 14).to(dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-7}
    assert_the_loop_is_met(place, Wide(with_bias, 7, dtype=dtype), x, interval=interval, **tolerance)


@everywhere
def test_packed_sequences_are_solved_each_on_its_own(place):
    torch.manual_seed(0)
    offsets = (0, 3, 3, 10, 11)
    x, h0 = torch.randn(1, 11, 10, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    assert_the_loop_is_met(place, Wide(with_bias, 5), x, h0, offsets=offsets)


LAYOUTS = {
    "time next to each other": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "rows inside": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "every other number": lambda x: torch.stack((x, x + 1), -1).flatten(2)[..., ::2],
    "part of a wider tensor": lambda x: torch.cat((x[..., :1], x, x[..., :3]), -1)[..., 1:-3],
    "expanded over rows": lambda x: x[:1].expand_as(x),
    "expanded over time": lambda x: x[:, :1].expand_as(x),
    "the same for all channels": lambda x: x[..., :1].expand_as(x),
    "negated in name": lambda x: torch.conj(torch.complex(x, x)).imag,
}


@everywhere
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_leaf_may_lie_in_memory_as_it_likes(place, layout):
    torch.manual_seed(0)
    cell, x = Wide(with_bias, 5).to(place[1]), torch.randn(3, 12, 10, dtype=torch.float64, device=place[1])
    laid = LAYOUTS[layout](x)
    found = solved(place, cell, laid.detach().requires_grad_()).states
    torch.testing.assert_close(found, loop(cell, laid, cell.initial_state(3)), rtol=1e-9, atol=1e-9)
    leaf = LAYOUTS[layout](x).requires_grad_()
    given = [leaf, *cell.parameters()]
    ours, truth = (
        torch.autograd.grad(weighted_sum(one.cpu()), given) for one in (solved(place, cell, leaf).states, loop(cell, leaf, cell.initial_state(3)))
    )
    torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@everywhere
@pytest.mark.parametrize("wanted", ["x", "h0", "bias", "recurrent"])
def test_gradients_of_one_source_alone_are_those_of_the_loop(place, wanted):
    torch.manual_seed(0)
    cell, x = Wide(with_bias, 5).to(place[1]), torch.randn(2, 20, 10, dtype=torch.float64, device=place[1])
    named = {"x": x, "h0": torch.randn(2, 5, dtype=torch.float64, device=place[1]), "bias": cell.bias, "recurrent": cell.recurrent}
    for name, tensor in named.items():
        tensor.requires_grad_(name == wanted)
    ours, truth = (
        torch.autograd.grad(weighted_sum(states.cpu()), named[wanted])
        for states in (solved(place, cell, x, h0=named["h0"]).states, loop(cell, x, named["h0"]))
    )
    torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@everywhere
def test_leaves_and_parameters_with_a_dimension_for_the_parts_are_the_same(place):
    torch.manual_seed(0)

    class Shaped(ToyCell):
        def __init__(self):
            super().__init__(5)
            self.bias = nn.Parameter(torch.randn(2, 5, dtype=torch.float64))

        def step(self, state, gates):
            return mixed(state, *(gates + self.bias).unbind(-2))

        def initial_state(self, batch):
            return self.bias.new_zeros(batch, 5)

        def drive(self, x):
            return x.unflatten(-1, (2, 5))

    cell, x = Shaped().to(place[1]), torch.randn(2, 9, 10, dtype=torch.float64, device=place[1], requires_grad=True)
    ours, truth = solved(place, cell, x).states, loop(cell, x, cell.initial_state(2))
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    given = [x, cell.bias]
    torch.testing.assert_close(*(torch.autograd.grad(weighted_sum(states.cpu()), given) for states in (ours, truth)), rtol=1e-8, atol=1e-8)


class Watched(ReferenceEngine):
    """Notes where it was asked to write gradients."""

    def backward(self, *args, into=None, **options):
        self.into = into
        return super().backward(*args, **options)


def test_a_leaf_has_one_gradient_that_engines_write_to_in_parts():
    torch.manual_seed(0)
    engine, cell, x = Watched(), Wide(with_bias, 3), torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    states = solved((lambda: engine, "cpu"), cell, x).states
    behind = [node.name() for node, _ in states.grad_fn.next_functions if node is not None]
    assert set(behind) == {"torch::autograd::AccumulateGrad"}
    (gradient,) = torch.autograd.grad(states.sum(), x)
    targets = [target for target in engine.into if target is not None]
    assert len(targets) == 2
    assert all(target.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr() for target in targets)
    assert gradient.is_contiguous()


def test_parts_of_a_gradient_that_lie_one_behind_the_other_are_joined_without_a_copy():
    rows = torch.randn(3, 4)
    assert columns._joined([rows[0], rows[1]]).data_ptr() == rows.data_ptr()
    torch.testing.assert_close(columns._joined([rows[0], rows[1]]), rows[:2].flatten())
    torch.testing.assert_close(columns._joined([rows[1], rows[0]]), torch.cat((rows[1], rows[0])))
    torch.testing.assert_close(columns._joined([rows[0], rows[2]]), torch.cat((rows[0], rows[2])))
    torch.testing.assert_close(columns._joined([rows[0], torch.ones(4)]), torch.cat((rows[0], torch.ones(4))))


def test_a_second_derivative_is_refused():
    cell, x = Wide(with_bias, 3), torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(solved((reference, "cpu"), cell, x).states.sum(), x, create_graph=True)
    with pytest.raises(DifferentiationError, match="derivatives='twice'"):
        torch.autograd.grad(gradient.sum(), x)


def test_a_leaf_edited_between_forward_and_backward_raises():
    cell, x = Wide(with_bias, 3), torch.randn(2, 5, 6, dtype=torch.float64)
    states = solved((reference, "cpu"), cell, x).states
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()
