"""What the activations of neural networks, and their derivatives, are in primitives."""

from __future__ import annotations

import math
from typing import Any

from pararnn.compiler.lowering import LOWERINGS as LOWERINGS
from pararnn.compiler.lowering import clamp, cube, lowers, scaled
from pararnn.compiler.numbers import Builder, Number


@lowers("hardtanh")
def _hardtanh(b: Builder, x: Any, low: float = -1, high: float = 1) -> Number:
    return clamp(b, x, low, high)


@lowers("relu")
def _relu(b: Builder, x: Any) -> Number:
    return b.maximum(x, 0.0)


@lowers("silu")
def _silu(b: Builder, x: Any) -> Number:
    return b.mul(x, b.sigmoid(x))


@lowers("silu_backward")
def _silu_backward(b: Builder, grad: Any, x: Any) -> Number:
    gate = b.sigmoid(x)
    return b.mul(grad, b.mul(gate, b.add(1.0, b.mul(x, b.sub(1.0, gate)))))


@lowers("sigmoid_backward")
def _sigmoid_backward(b: Builder, grad: Any, gate: Any) -> Number:
    return b.mul(grad, b.mul(gate, b.sub(1.0, gate)))


@lowers("tanh_backward")
def _tanh_backward(b: Builder, grad: Any, y: Any) -> Number:
    return b.mul(grad, b.sub(1.0, b.mul(y, y)))


@lowers("threshold")
def _threshold(b: Builder, x: Any, threshold: float, value: float) -> Number:
    return b.where(b.le(x, threshold), value, x)


@lowers("threshold_backward")
def _threshold_backward(b: Builder, grad: Any, x: Any, threshold: float) -> Number:
    return b.where(b.le(x, threshold), 0.0, grad)


@lowers("hardshrink_backward", "softshrink_backward")
def _shrink_backward(b: Builder, grad: Any, x: Any, bound: float) -> Number:
    return b.where(b.le(b.abs(x), bound), 0.0, grad)


@lowers("softplus")
def _softplus(b: Builder, x: Any, beta: float = 1, threshold: float = 20) -> Number:
    if (beta, threshold) == (1, 20):
        return b.softplus(x)
    steep = scaled(b, beta, x)
    return b.where(b.gt(steep, threshold), x, b.div(b.log1p(b.exp(steep)), beta))


@lowers("softplus_backward")
def _softplus_backward(b: Builder, grad: Any, x: Any, beta: float, threshold: float) -> Number:
    steep = scaled(b, beta, x)
    slope = b.sigmoid(steep)
    # From the threshold on the slope is 1, which it mostly rounds to anyway.
    return b.mul(grad, slope if math.exp(-threshold) < b.digits / 4 else b.where(b.gt(steep, threshold), 1.0, slope))


@lowers("log_sigmoid_backward")
def _log_sigmoid_backward(b: Builder, grad: Any, x: Any, _buffer: Any) -> Number:
    return b.mul(grad, b.sigmoid(b.neg(x)))


@lowers("gelu")
def _gelu(b: Builder, x: Any, approximate: str = "none") -> Number:
    if approximate == "tanh":
        inner = b.mul(b.add(x, b.mul(0.044715, cube(b, x))), math.sqrt(2 / math.pi))
        return b.mul(b.mul(0.5, x), b.add(1.0, b.tanh(inner)))
    return b.mul(b.mul(0.5, x), b.add(1.0, b.erf(b.mul(x, math.sqrt(0.5)))))


@lowers("elu")
def _elu(b: Builder, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Number:
    return b.where(b.gt(x, 0.0), scaled(b, scale, x), b.mul(b.expm1(scaled(b, input_scale, x)), alpha * scale))


@lowers("leaky_relu")
def _leaky_relu(b: Builder, x: Any, slope: float = 0.01) -> Number:
    return b.where(b.gt(x, 0.0), x, b.mul(x, slope))
