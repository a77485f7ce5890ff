"""Every weight path where times and parameters live on different devices, and where there is no float64."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pararnn_nanode.paths import base, precision

N = 3


def test_times_may_live_on_another_device_than_the_parameters(path, times):
    weights = path.to("meta").grid(times)
    assert weights.device.type == "meta"
    assert weights.shape == (len(times), N, N)


class NoFloat64(TorchDispatchMode):
    """Fails where float64 is asked of the device without numbers, which stands for one without float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not (isinstance(leaf, torch.Tensor) and leaf.is_meta and leaf.dtype in (torch.float64, torch.complex128)), func
        return result


def test_a_device_without_float64_is_asked_for_none(path, monkeypatch, times):
    low = path.to("meta", torch.float32)
    for module in (base, precision):
        monkeypatch.setattr(module, "NO_FLOAT64", ("meta",))
    with NoFloat64():
        assert low.at(0.3).dtype is torch.float32
        assert low.grid(times).is_meta


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_on_a_gpu_equal_those_on_the_cpu(path, device, times):
    expected = path.grid(times)
    expected.square().sum().backward()
    twin = copy.deepcopy(path).cuda()
    twin.zero_grad()
    found = twin.grid(times.to(device))
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(twin.at(0.3).cpu(), path.at(0.3), rtol=1e-12, atol=1e-12)
    found.square().sum().backward()
    for here, there in zip(path.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-10, atol=1e-10)
