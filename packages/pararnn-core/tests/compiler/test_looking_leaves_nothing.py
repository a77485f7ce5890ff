"""Looking at a step, to see what it reads and to trace it, changes nothing of its cell and of what else it reaches."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from toy_cells import ToyCell, loop

from pararnn import BackendError, NewtonConfig, ParaRNN, newton_apply
from pararnn.selection import clear_cache
from pararnn.solver import again

BACKENDS = ["auto", "native", "torch"]
LENGTHS = pytest.mark.parametrize("length", [9, 1500])
TABLES = {}


@functools.lru_cache
def remembered(size):
    return torch.arange(1.0, size + 1).double()


def looked_up(size):
    if size not in TABLES:
        TABLES[size] = remembered.__wrapped__(size)
    return TABLES[size]


class Tables:
    table = None

    def get(self, size):
        if self.table is None:
            self.table = remembered.__wrapped__(size)
        return self.table


class Cell(ToyCell):
    """A cell that calls a layer in its step."""

    def __init__(self):
        super().__init__(3)
        self.weight, self.act = nn.Parameter(torch.linspace(-0.5, 0.5, 3).double()), nn.Tanh()
        self.rate = 1.0

    def step(self, state, drive):
        return self.act(self.weight * state * self.rate + drive)


class Lazy(Cell):
    """A cell with a table that is made when it is first needed."""

    kept = None

    def __init__(self):
        super().__init__()
        self.known, self.tables = {}, Tables()

    def step(self, state, drive):
        return super().step(state, drive) / self.table()


class AsAttribute(Lazy):
    def table(self):
        if self.kept is None:
            self.kept = remembered.__wrapped__(3)
        return self.kept


class AsCachedProperty(Lazy):
    @functools.cached_property
    def made(self):
        return remembered.__wrapped__(3)

    def table(self):
        return self.made


class InADict(Lazy):
    def table(self):
        if "table" not in self.known:
            self.known["table"] = remembered.__wrapped__(3)
        return self.known["table"]


class InAnObject(Lazy):
    def table(self):
        return self.tables.get(3)


class InAGlobal(Lazy):
    def table(self):
        return looked_up(3)


class InALeastRecentlyUsedCache(Lazy):
    def table(self):
        return remembered(3)


@pytest.fixture(autouse=True)
def nothing_remembered():
    for forget in (clear_cache, again.forget, TABLES.clear, remembered.cache_clear):
        forget()


def inputs(length=9):
    return torch.randn(2, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def served(cell, x, backend):
    """The states; a step that an engine refuses is for plain PyTorch to solve."""
    try:
        return newton_apply(cell, x, NewtonConfig(backend=backend))
    except BackendError:
        assert backend == "native"
        return newton_apply(cell, x, NewtonConfig(backend="torch"))


@pytest.mark.parametrize("backend", BACKENDS)
@LENGTHS
def test_no_gradient_is_there_before_backward_is_called(backend, length):
    cell = Cell()
    states = newton_apply(cell, inputs(length), NewtonConfig(backend=backend))
    assert cell.weight.grad is None
    states.sum().backward()
    assert type(cell.weight.grad) is torch.Tensor


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cell_whose_settings_change_at_each_step_of_training_learns_as_with_the_loop(backend):
    def trained(solve):
        cell = Cell()
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.5)
        for turn in range(6):
            cell.rate = 1.0 - 0.1 * turn
            optimizer.zero_grad()
            solve(cell, inputs()).square().mean().backward()
            optimizer.step()
        return cell.weight.detach()

    ours = trained(lambda cell, x: newton_apply(cell, x, NewtonConfig(backend=backend)))
    torch.testing.assert_close(ours, trained(loop), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_a_weight_are_called_when_its_gradient_is_there_and_not_before(backend):
    cell, called = Cell(), []
    cell.weight.register_hook(lambda grad: called.append(type(grad)))
    cell.weight.register_post_accumulate_grad_hook(lambda weight: called.append(type(weight.grad)))
    states = newton_apply(cell, inputs(), NewtonConfig(backend=backend))
    assert called == []
    states.sum().backward()
    assert called == [torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("backend", BACKENDS)
@LENGTHS
def test_a_weight_that_is_computed_keeps_the_graph_it_was_computed_by(backend, length):
    cell = Cell()
    prune.l1_unstructured(cell, "weight", amount=1)
    newton_apply(cell, inputs(length), NewtonConfig(backend=backend)).sum().backward()
    truth = Cell()
    prune.l1_unstructured(truth, "weight", amount=1)
    loop(truth, inputs(length)).sum().backward()
    torch.testing.assert_close(cell.weight_orig.grad, truth.weight_orig.grad, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
@LENGTHS
@pytest.mark.parametrize("kind", Lazy.__subclasses__())
def test_what_a_step_makes_at_its_first_call_has_numbers(kind, backend, length):
    cell, x = kind(), inputs(length)
    for _ in range(3):
        torch.testing.assert_close(served(cell, x, backend), loop(kind(), x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(loop(cell, x), loop(kind(), x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", Lazy.__subclasses__())
def test_nor_does_a_decoder_take_a_table_without_numbers(kind):
    cell, x = kind(), inputs()
    decoder = ParaRNN(cell).decoder(2)
    outputs = torch.stack([decoder.step(x[:, time]).clone() for time in range(9)], 1)
    torch.testing.assert_close(outputs, cell.readout(loop(kind(), x)), rtol=1e-9, atol=1e-9)


def test_a_buffer_that_a_step_writes_to_stays_a_tensor_that_can_be_saved():
    class Counting(Cell):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def step(self, state, drive):
            self.seen = self.seen + 1
            return super().step(state, drive)

    cell = Counting()
    served(cell, inputs(), "auto")
    assert type(cell.state_dict()["seen"]) is torch.Tensor
