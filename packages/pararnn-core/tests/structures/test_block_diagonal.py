"""Block diagonal structures of every size: their classes, their layout, and their way through pickle."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn.structures.block_diagonal import BlockDiagonal
from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal


def blocks(slots, channels=2, lead=(3,), dtype=torch.float64):
    generator = torch.Generator().manual_seed(slots)
    return BlockDiagonal.sized(slots)(torch.randn(*lead, slots, slots, channels, generator=generator, dtype=dtype))


def test_two_slots_are_the_class_itself():
    assert BlockDiagonal.sized(2) is BlockDiagonal
    assert BlockDiagonal.slots == 2


def test_a_size_always_gives_the_same_class():
    assert BlockDiagonal.sized(3) is BlockDiagonal.sized(3)
    assert BlockDiagonal.sized(3) is not BlockDiagonal.sized(4)
    assert issubclass(BlockDiagonal.sized(3), BlockDiagonal)
    assert BlockDiagonal.sized(3).__name__ == "BlockDiagonal3"


@pytest.mark.parametrize("slots", [0, -1])
def test_a_block_without_slots_is_refused(slots):
    with pytest.raises(ConfigError, match=f"slots={slots}"):
        BlockDiagonal.sized(slots)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7], ids="{} slots".format)
def test_operations_equal_those_of_the_dense_form(slots):
    maps, other = blocks(slots), blocks(slots + 1).blocks[..., :slots, :slots, :]
    other = type(maps)(other)
    state = torch.arange(3.0 * 2 * slots, dtype=torch.float64).reshape(3, -1)
    assert type(maps.compose(other)) is type(maps.transpose()) is BlockDiagonal.sized(slots)
    torch.testing.assert_close(maps.compose(other).to_dense(), maps.to_dense() @ other.to_dense())
    torch.testing.assert_close(maps.apply(state), (maps.to_dense() @ state.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(maps.transpose().to_dense(), maps.to_dense().mT)


def test_the_state_holds_all_channels_of_the_first_slot_then_of_the_next():
    # Row 0 of each block reads slot 1: the second half of the state arrives in the first.
    maps = BlockDiagonal(torch.tensor([[0.0, 1.0], [0.0, 0.0]]).reshape(2, 2, 1).expand(2, 2, 3))
    assert maps.apply(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).tolist() == [4, 5, 6, 0, 0, 0]


def test_the_dense_form_is_zero_between_channels():
    dense = blocks(3, channels=4, lead=()).to_dense().reshape(3, 4, 3, 4)
    apart = ~torch.eye(4, dtype=torch.bool)
    assert not dense.permute(0, 2, 1, 3)[..., apart].any()
    assert dense.permute(0, 2, 1, 3)[..., ~apart].all()


def test_one_slot_is_diagonal_and_one_channel_is_dense():
    one_slot = blocks(1, channels=5)
    torch.testing.assert_close(one_slot.to_dense(), Diagonal(one_slot.blocks[:, 0, 0]).to_dense())
    one_channel = blocks(4, channels=1)
    torch.testing.assert_close(one_channel.to_dense(), Dense(one_channel.blocks[..., 0]).to_dense())


@pytest.mark.parametrize("slots", [1, 2, 3], ids="{} slots".format)
def test_linearize_finds_the_blocks_of_a_step_that_mixes_slots(slots):
    maps = blocks(slots)
    state = torch.linspace(-1, 1, 3 * 2 * slots, dtype=torch.float64).reshape(3, -1)
    value, jacobian = type(maps).linearize(lambda at: torch.tanh(maps.apply(at)), state)
    torch.testing.assert_close(value, torch.tanh(maps.apply(state)))
    dense = torch.func.vmap(torch.func.jacrev(lambda at, block: torch.tanh(type(maps)(block).apply(at))))(state, maps.blocks)
    torch.testing.assert_close(jacobian.to_dense(), dense)


@pytest.mark.parametrize("slots", [1, 2, 3, 5], ids="{} slots".format)
def test_maps_survive_pickle_and_deepcopy(slots):
    maps = blocks(slots)
    for again in (pickle.loads(pickle.dumps(maps)), copy.deepcopy(maps)):
        assert type(again) is type(maps)
        assert torch.equal(again.blocks, maps.blocks)


@pytest.mark.integration
def test_a_pickled_size_is_found_by_a_process_that_never_made_it():
    program = "import pickle, sys; kind = pickle.loads(sys.stdin.buffer.read()); sys.stdout.write(f'{kind.__name__} {kind.slots}')"
    answer = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(BlockDiagonal.sized(6)), capture_output=True, check=True)
    assert answer.stdout.decode() == "BlockDiagonal6 6"


@pytest.mark.parametrize("name", ["BlockDiagonal0", "BlockDiagonalx", "BlockDiagonal-1", "Block"])
def test_the_module_makes_no_other_names(name):
    from pararnn.structures import block_diagonal

    with pytest.raises(AttributeError, match="no attribute"):
        getattr(block_diagonal, name)
