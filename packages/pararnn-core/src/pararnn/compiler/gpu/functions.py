"""Device functions for the primitives that Triton lacks, or has only with a large relative error near zero, as source text.

They work in single and double precision, in Triton's interpreter too, and have no branches. In single precision they are off by a few units in the
last place; the polynomials were fitted for this file, with the least relative error.
"""

from __future__ import annotations

SOURCE = '''
import triton
import triton.language as tl


@triton.jit
def horner(x, factor, term):
    """factor x + term, rounded once."""
    return tl.fma(x, factor, term)


@triton.jit
def exp(x):
    # In base two, because that flushes what is too small to be normal, and takes two instructions instead of five.
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        return tl.exp2(x * 1.4426950408889634)


@triton.jit
def inverse(x):
    """1 / x for x >= 1."""
    if x.dtype == tl.float64:
        return 1.0 / x
    else:
        # As good as the quotient that a GPU gives, and less than half of its instructions.
        half = tl.rsqrt(x)
        return half * half


@triton.jit
def log1p_factor(x):
    """log(1 + x) / x for x in [0, 1], in single precision."""
    even = horner(x, 0.005245391411734194, -0.02955732535738254)
    even = horner(x, even, 0.07831307861121346)
    even = horner(x, even, -0.13670869722760462)
    even = horner(x, even, 0.1910972416555989)
    even = horner(x, even, -0.2484397399917205)
    even = horner(x, even, 0.33319228062978995)
    even = horner(x, even, -0.499994998493879)
    return horner(x, even, 0.9999999704519048)


@triton.jit
def log1p(x):
    whole = 1.0 + x
    ordinary = (whole != 1.0) & (whole < float("inf")) & (whole > 0.0)
    safe = tl.where(ordinary, whole, 2.0)
    # The quotient takes back what rounding `whole` did.
    return tl.where(ordinary, tl.log(safe) * (x / (safe - 1.0)), tl.where(whole == 1.0, x, tl.log(whole)))


@triton.jit
def expm1(x):
    if x.dtype == tl.float64:
        grown = tl.exp(x)
        ordinary = (grown != 1.0) & (grown < float("inf")) & (grown - 1.0 != -1.0)
        safe = tl.where(ordinary, grown, 2.0)
        return tl.where(ordinary, (safe - 1.0) * (x / tl.log(safe)), tl.where(grown == 1.0, x, grown - 1.0))
    small = horner(x, 0.00019849810086504903, 0.0013996176354478603)
    small = horner(x, small, 0.008333579033357599)
    small = horner(x, small, 0.0416653585971145)
    small = horner(x, small, 0.16666663985564883)
    small = horner(x, small, 0.5000000385316818)
    return tl.where(tl.abs(x) < 0.5, horner(x * x, small, x), exp(x) - 1.0)


@triton.jit
def tanh(x):
    if x.dtype == tl.float64:
        size = tl.abs(x)
        shrunk = expm1(-2.0 * size)
        result = -shrunk / (shrunk + 2.0)
        return tl.where(x < 0.0, -result, tl.where(size == 0.0, x, result))
    square = x * x
    small = horner(square, horner(square, -0.04924069630582319, 0.13301123277919966), -0.3333270215097633)
    return tl.where(square < 0.12, horner(x * square, small, x), horner(inverse(1.0 + exp(2.0 * x)), -2.0, 1.0))


@triton.jit
def sigmoid(x):
    return inverse(1.0 + exp(x * -1.0))


@triton.jit
def softplus(x):
    share = exp(tl.abs(x) * -1.0)
    # A maximum would forget a NaN, the other term does not.
    if x.dtype == tl.float64:
        return tl.maximum(x, 0.0) + log1p(share)
    return horner(share, log1p_factor(share), tl.maximum(x, 0.0))


@triton.jit
def root(x):
    # An `else`, because what follows a return is compiled as well, and there is no `sqrt_rn` of double precision.
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def sign(x):
    return tl.where(x > 0.0, 1.0, 0.0) - tl.where(x < 0.0, 1.0, 0.0)


@triton.jit
def power(base, exponent):
    # In double precision, where the logarithm keeps the digits that the exponent magnifies.
    base_wide = base.to(tl.float64)
    wide = exponent.to(tl.float64)
    size = tl.abs(base_wide)
    result = tl.where(size == 0.0, tl.where(wide < 0.0, float("inf"), 0.0), tl.exp(wide * tl.log(tl.where(size == 0.0, 1.0, size))))
    whole = tl.floor(wide) == wide
    odd = whole & (tl.floor(wide * 0.5) * 2.0 != wide)
    result = tl.where(base_wide < 0.0, tl.where(whole, tl.where(odd, -result, result), float("nan")), result)
    return tl.where((wide == 0.0) | (base_wide == 1.0), 1.0, result).to(base.dtype)
'''
