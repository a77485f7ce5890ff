"""`f = activation(W(t) * x + b(t) + U(t) * u)` with a convolution: images, signals and volumes as states."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_nanode.fields.base import Weights
from pararnn_nanode.fields.layer import Activation, LayerField
from pararnn_nanode.paths.base import WeightPath

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class ConvField(LayerField):
    """`f(t, x) = activation(W(t) * x + b(t))` with stride 1 and zeros around, so that the state keeps its size.

    Args:
        channels: channels of the state `(*batch, channels, *sites)`.
        kernel: size of the kernel, odd: one number for all dimensions, or one for each.
        path: weights `(channels, channels / groups, *kernel)`; with 1, 2 or 3 sizes of the kernel for states on a line, a plane or in space.
        bias: a path `(channels,)`, or None.
        input: a path `(channels, inputs, *kernel)` for inputs `u` `(*batch, inputs, *sites)`, or None.
        activation: a name such as `"tanh"`, a function of tensors without parameters, or None for a linear equation.
        groups: groups of channels that do not see one another.
    """

    def __init__(
        self,
        channels: int,
        kernel: int | tuple[int, ...],
        path: WeightPath,
        *,
        bias: WeightPath | None = None,
        input: WeightPath | None = None,
        activation: str | Activation | None = "tanh",
        groups: int = 1,
    ) -> None:
        super().__init__(channels, path, bias=bias, input=input, activation=activation)
        sites = len(path.shape) - 2
        if sites not in CONVOLUTIONS:
            raise ShapeError(f"the path of a ConvField has shape (channels, channels / groups, *kernel) with 1 to 3 kernel sizes, got {path.shape}")
        sizes = (kernel,) * sites if isinstance(kernel, int) else tuple(kernel)
        if any(size < 1 or size % 2 == 0 for size in sizes):
            raise ConfigError(f"kernel sizes are odd, so that the state keeps its size, got {kernel!r}")
        if groups < 1 or channels % groups:
            raise ConfigError(f"groups must divide the {channels} channels, got {groups}")
        if path.shape != (channels, channels // groups, *sizes):
            raise ShapeError(
                f"a ConvField of {channels} channels, kernel {kernel} and groups {groups} needs a path of shape "
                f"{(channels, channels // groups, *sizes)}, got {path.shape}"
            )
        if input is not None and (
            len(input.shape) != len(path.shape) or input.shape[0] != channels or any(size % 2 == 0 for size in input.shape[2:])
        ):
            raise ShapeError(f"the input of this ConvField needs a path of shape ({channels}, inputs, *odd kernel), got {input.shape}")
        self.groups = groups
        self.sites = sites

    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        return self._convolve(weight, x, groups=1)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        kernel = weights[0]
        drive = weights[1] if len(weights) == 2 else None
        lead = kernel.ndim - self.sites - 2
        if lead == 0 and x.ndim == self.sites + 2 and (drive is None or drive.ndim == 1):
            pre = CONVOLUTIONS[self.sites](x, kernel, drive, padding="same", groups=self.groups)
        else:
            pre = self._convolve(kernel, x, groups=self.groups)
            if drive is not None:
                pre = pre + (self.spread(drive, x.ndim) if drive.ndim == lead + 1 else drive)
        return pre if self._activate is None else self._activate(pre)

    def _convolve(self, kernel: Tensor, x: Tensor, *, groups: int) -> Tensor:
        """`kernel` `(*lead, out, in / groups, *sizes)` over `x` `(*lead, *batch, in, *sites)`, whatever the lead and the batch."""
        convolution = CONVOLUTIONS[self.sites]
        lead = kernel.ndim - self.sites - 2
        first = x.ndim - self.sites - 1
        image = x.shape[first:]
        if lead == 0:
            flat = convolution(x.reshape(-1, *image), kernel, padding="same", groups=groups)
            return flat.reshape(*x.shape[:first], *flat.shape[1:])
        # Every kernel of the lead is one more group of channels, so that one call serves them all.
        count = kernel.shape[:lead].numel()
        stacked = x.reshape(count, -1, *image).transpose(0, 1).flatten(1, 2)
        flat = convolution(stacked, kernel.flatten(0, lead), padding="same", groups=groups * count)
        out: Tensor = flat.unflatten(1, (count, kernel.shape[lead])).transpose(0, 1)
        return out.reshape(*x.shape[:first], *out.shape[2:])

    def extra_repr(self) -> str:
        """Channels, kernel, groups and activation."""
        return f"channels={self.dim}, kernel={self.path.shape[2:]}, groups={self.groups}, activation={self.activation!r}"
