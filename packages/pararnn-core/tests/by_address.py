"""Triton's interpreter takes tensors where compiled kernels take addresses; this makes it take both, so that what passes addresses runs on a CPU."""

import ctypes

import torch


def launch_by_address(patch):
    """From the second launch of a kernel on, what is passed for its tensors are addresses; gives the list of how many arguments were such."""
    from pararnn.compiler.gpu.calls import Kernel

    counted = []

    def call(kernel, memory):
        if kernel.launch is None:
            kernel.function[kernel.grid](*memory, *kernel.numbers, **kernel.options)
            kinds = [one.dtype if isinstance(one, torch.Tensor) else None for one in memory]

            def launch(*arguments):
                given = [_at(one, kind) if kind is not None else one for one, kind in zip(arguments, kinds, strict=False)]
                kernel.function[kernel.grid](*given, *kernel.numbers, **kernel.options)

            kernel.launch = launch
            return
        assert not any(isinstance(one, torch.Tensor) for one in memory)
        counted.append(len(memory))
        kernel.launch(*memory)

    patch.setattr(Kernel, "__call__", call)
    return counted


def _at(address, dtype):
    """A tensor of one number at `address`; kernels go on from there."""
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)
