"""What is left of a solve that nobody holds any more: nothing."""

import gc

import pytest
import torch

from pararnn_nanode import NANODE, DenseField, TrigPath

WAYS = [
    {"method": "euler"},
    {"method": "rk4", "gradient": "checkpoint"},
    {"method": "alf", "gradient": "reversible"},
    {"method": "rk4", "gradient": "adjoint"},
    {"method": "dopri5"},
    {"method": "dopri5", "gradient": "checkpoint"},
    {"method": "dopri5", "gradient": "adjoint"},
    {"steps": 128, "parallel": "newton"},
    {"steps": 128, "parallel": "windowed"},
]


def tensors():
    """How many tensors there are, unreachable ones included."""
    # By type: isinstance would ask some lazy objects of torch for their class, and they warn.
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("backward", [True, False], ids=["backward", "forward"])
@pytest.mark.parametrize("options", WAYS, ids=lambda options: "-".join(map(str, options.values())))
def test_solves_leave_no_tensor_behind(options, backward):
    block = NANODE(DenseField(4, TrigPath((4, 4), 1)), **options)
    x = torch.randn(3, 4)
    counts = []
    for _ in range(4):
        block.zero_grad(set_to_none=True)
        states = block(x)
        if backward:
            states.sum().backward()
        del states
        # A forward pass of torch's checkpoint that is dropped leaves a cycle, which Python collects when it gets to it.
        gc.collect()
        counts.append(tensors())
    assert counts[-1] == counts[1]
