"""What is remembered of solves: one memory a cell, which goes with the cell, and is left aside when what it rests on is forgotten."""

import copy
import gc
import pickle
import weakref

import torch
from recognised_solves import Settings, anywhere, assert_right, inputs, learnt
from toy_cells import Gate

from pararnn import newton_apply
from pararnn.compiler import catalogue
from pararnn.selection import clear_cache
from pararnn.solver import again


@anywhere
def test_cells_of_one_class_are_told_apart(place, config, recognised):
    cells, x = [Gate(3, 4).to(place[1]) for _ in range(3)], inputs(place)
    cells[2].lift.data.mul_(3)
    for _ in range(4):
        for cell in (*cells, copy.deepcopy(cells[0])):
            assert_right(cell, x, config)
    assert sum(recognised) == 6


@anywhere
def test_a_cell_that_is_gone_leaves_nothing(place, config):
    cell, x = Settings().to(place[1]), inputs(place, requires_grad=True)
    cell.itself, cell.function = [cell], cell.mixed
    cell.act.register_forward_pre_hook(lambda module, args: None)
    plain = Settings().to(place[1])
    plain.act.owner = [plain]
    for one in (cell, plain):
        for _ in range(4):
            newton_apply(one, x, config).sum().backward()
    gone = [weakref.ref(cell), weakref.ref(plain), weakref.ref(plain.act), weakref.ref(plain.weight)]
    del cell, plain, one
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4
    assert not again._memory


@anywhere
def test_a_cell_can_be_pickled_and_copied(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    learnt(cell, x, config)
    for other in (pickle.loads(pickle.dumps(cell)), copy.deepcopy(cell)):
        torch.testing.assert_close(newton_apply(other, x, config), newton_apply(cell, x, config))


@anywhere
def test_forgetting_choices_or_programs_takes_the_long_way(place, config, recognised):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    for forget in (clear_cache, catalogue.forget):
        learnt(cell, x, config)
        newton_apply(cell, x, config)
        assert recognised[-1]
        forget()
        newton_apply(cell, x, config)
        assert not recognised[-1]
