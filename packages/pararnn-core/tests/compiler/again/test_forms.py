"""Solves of every form follow each other: initial states, inputs, drives and gradients of any layout, sizes, modes, dtypes, configurations."""

import pytest
import torch
from recognised_solves import Squash, anywhere, assert_right, everywhere, inputs
from torch import nn
from toy_cells import Gate, loop, packed_loop

from pararnn import NewtonConfig, ParaRNN, ShapeError, newton_apply


def starts(place):
    base = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(place[1])
    mirrored = torch.complex(base, base).conj().imag
    assert mirrored.is_neg()
    return {
        "plain": base,
        "channels apart": base.t().contiguous().t(),
        "one row for all": base[:1].expand(2, 4),
        "negated view": mirrored,
        "misaligned": torch.cat([base.new_zeros(1), base.reshape(-1)])[1:].reshape(2, 4),
        "single precision": base.float(),
        "parameter": nn.Parameter(base.clone()),
        "on the graph": base.clone().requires_grad_(),
    }


@everywhere
def test_initial_states_of_any_kind_follow_each_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, requires_grad=True)
    for _ in range(4):
        for h0 in (None, *starts(place).values()):
            assert_right(cell, x, config, h0)


@everywhere
def test_inputs_of_any_layout_follow_each_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place)
    layouts = [
        x,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x[:1].expand(2, 9, 3),
        torch.cat([x, x], 2)[..., :3],
        torch.complex(x, x).conj().imag,
        torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].reshape(2, 9, 3),
    ]
    for _ in range(4):
        for one in layouts:
            assert_right(cell, one, config)


@everywhere
def test_drives_of_any_layout_follow_each_other(place, config):
    class Passing(Squash):
        def drive(self, x):
            return self.made

    cell, x = Passing(3).to(place[1]), inputs(place, requires_grad=True)
    layouts = [
        x * 1,
        (x * 1).transpose(0, 1).contiguous().transpose(0, 1),
        torch.complex(x, x).conj().imag,
        x[:, :, :1].expand(2, 9, 3),
        x[..., :1],
        x.flip(2),
    ]
    for _ in range(4):
        for one in layouts:
            cell.made = one
            states, truth = newton_apply(cell, x, config), loop(Squash(3).to(place[1]), one)
            torch.testing.assert_close(states, truth, rtol=1e-9, atol=1e-9)
            ours, expected = (torch.autograd.grad(found.square().sum(), x, retain_graph=True)[0] for found in (states, truth))
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@everywhere
def test_gradients_of_any_layout_follow_each_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, requires_grad=True)
    base = torch.randn(2, 9, 4, dtype=torch.float64).to(place[1])
    layouts = [
        base,
        base[:1].expand(2, 9, 4),
        base.transpose(1, 2).contiguous().transpose(1, 2),
        torch.complex(base, base).conj().imag,
        base[..., :1].expand(2, 9, 4),
    ]
    sources = [x, *cell.parameters()]
    for _ in range(4):
        for grad in layouts:
            ours, truth = (torch.autograd.grad(solve, sources, grad) for solve in (newton_apply(cell, x, config), loop(cell, x)))
            torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@everywhere
def test_sizes_and_modes_follow_each_other(place, config):
    cell = Gate(3, 4).to(place[1])
    for _ in range(4):
        assert newton_apply(cell, inputs(place, length=0), config).shape == (2, 0, 4)
        for batch, length in ((2, 9), (1, 1), (0, 5), (3, 9)):
            x = inputs(place, batch=batch, length=length)
            assert_right(cell, x, config)
            for mode in (torch.no_grad(), torch.inference_mode()):
                with mode:
                    states = newton_apply(cell, x, config)
                assert not states.requires_grad
                torch.testing.assert_close(states.clone(), loop(cell, x).detach(), rtol=1e-9, atol=1e-9)
            cell.requires_grad_(requires_grad=False)
            assert not newton_apply(cell, x, config).requires_grad
            cell.requires_grad_()
            cell.train(not cell.training)


@everywhere
def test_dtypes_follow_each_other(place, config):
    cell = Gate(3, 4).to(place[1])
    for _ in range(4):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            x = inputs(place).to(dtype)
            cell.to(dtype)
            torch.testing.assert_close(newton_apply(cell, x, config), loop(cell, x), rtol=tolerance, atol=tolerance)
            with torch.autocast(place[1], dtype=torch.bfloat16):
                states = newton_apply(cell, x, config)
            torch.testing.assert_close(states, loop(cell, x), rtol=0.1, atol=0.1)


@anywhere
def test_configurations_follow_each_other(place):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, length=40)
    configs = [NewtonConfig(backend=name, interval=interval) for name in (place[0], "torch") for interval in (5, 40)]
    for _ in range(4):
        for config in configs:
            (result,) = ParaRNN(cell, config=config).solve(x)[1]
            assert (result.backend, result.plan.interval) == (config.backend, config.interval)
            torch.testing.assert_close(result.states, loop(cell, x), rtol=1e-8, atol=1e-8)


@anywhere
def test_packed_sequences_and_guesses_between_are_honoured(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, batch=1, length=11)
    offsets = torch.tensor([0, 3, 3, 10, 11])
    for _ in range(4):
        assert_right(cell, x, config)
        torch.testing.assert_close(newton_apply(cell, x, config, cu_seqlens=offsets), packed_loop(cell, x, offsets.tolist()), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(newton_apply(cell, x, config, guess=x.new_zeros(1, 11, 4)), loop(cell, x), rtol=1e-9, atol=1e-9)
        with pytest.raises(ShapeError, match="guess"):
            newton_apply(cell, x, config, guess=x.new_zeros(1, 11, 5))
