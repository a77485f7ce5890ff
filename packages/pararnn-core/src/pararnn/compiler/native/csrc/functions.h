/* Elementary functions without branches, which compilers turn into vector code; a few units in the last place.

Included once for each precision, with T(name) that gives names their prefix. NaN and infinity come through as in the C library. What is
computed for the lanes of a vector that are then not selected may overflow or be NaN; nothing traps. */

#define real T(real)
#define word T(word)
#define bits T(bits)

INLINE word T(to_word)(real x) {
    union { real number; word pattern; } both = {.number = x};
    return both.pattern;
}

INLINE real T(from_word)(word pattern) {
    union { word pattern; real number; } both = {.pattern = pattern};
    return both.number;
}

/* The number whose exponent has the lowest bits of k: 2^(k - BIAS). */
INLINE real T(power)(word k) { return T(from_word)((word)((bits)k << T(MANTISSA))); }

/* 2^k for the exponents of normal numbers. */
INLINE real T(two_to)(word k) { return T(power)((word)((bits)k + T(BIAS))); }

/* The integer nearest to x times `scale`: as the number n, and n + `lift` in the lowest bits of k, for results far below the largest integer. */
#define NEAREST(x, scale, lift, k, n)                                         \
    const real T(shifted) = T(mad)((x), (scale), (real)T(MAGIC) + (lift));    \
    const real n = T(shifted) - ((real)T(MAGIC) + (lift));                    \
    const word k = T(to_word)(T(shifted));

INLINE real T(exp)(real x) {
    const real y = x < -T(UNDERFLOW) ? -T(UNDERFLOW) : x;
    /* Of positive numbers larger ones have larger patterns. Only the power is limited, so that infinity and NaN come through the polynomial. */
    const word pattern = T(to_word)(y), most = T(to_word)((real)T(OVERFLOW));
    NEAREST(T(from_word)(pattern < most ? pattern : most), T(LOG2_E), 2 * T(BIAS), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = (real)1 + T(mad)(r * r, T(exp_tail)(r), r);
    /* In two steps, because the result may be infinite or subnormal where the power alone has no number. */
    const bits half = ((bits)k << (T(MANTISSA) - 1)) & (bits)T(to_word)((real)INFINITY);
    return p * T(from_word)((word)half) * T(from_word)((word)(((bits)k << T(MANTISSA)) - half));
}

/* exp(-a) for a >= 0, in less time. */
INLINE real T(exp_minus)(real a) {
    const real y = a > T(UNDERFLOW) ? -T(UNDERFLOW) : -a;
    NEAREST(y, T(LOG2_E), T(BIAS) + T(LIFT), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = (real)1 + T(mad)(r * r, T(exp_tail)(r), r);
    return p * T(power)(k) * T(two_to)(-T(LIFT));
}

INLINE real T(expm1)(real x) {
    real y = x > T(OVERFLOW) ? T(OVERFLOW) : x;
    y = y < -T(MINUS_ONE) ? -T(MINUS_ONE) : y;
    /* Half of the power, because the largest one has no number. */
    NEAREST(y, T(LOG2_E), T(BIAS) - 1, k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = T(mad)(r * r, T(exp_tail)(r), r);
    const real half = T(power)(k);
    const real scaled = T(mad)(p, half, half - (real)0.5) * (real)2;
    return T(copysign)(n == 0 ? p : scaled, x);
}

INLINE real T(tanh)(real x) {
    const real a = T(abs)(x);
    const real y = a > T(MINUS_ONE) ? -T(MINUS_ONE) * (real)2 : a * (real)-2;
    NEAREST(y, T(LOG2_E), T(BIAS), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = T(mad)(r * r, T(exp_tail)(r), r);
    const real power = T(power)(k);
    const real t = T(mad)(p, power, power - (real)1);
    return T(copysign)(t / ((real)2 + t), x);
}

INLINE real T(sigmoid)(real x) {
    const real e = T(exp_minus)(T(abs)(x));
    return (x < 0 ? e : (real)1) / ((real)1 + e);
}

/* As torch has it: x itself above 20, where single precision rounds to that anyhow. */
INLINE real T(softplus)(real x) {
    const real e = T(exp_minus)(T(abs)(x));
    const real sum = (x < 0 ? (real)0 : x) + T(log1p_unit)(e);
    return x > T(SOFTPLUS_LAST) ? x : sum;
}

INLINE real T(log)(real x) {
    const word small = x < T(TINY);
    const word pattern = T(to_word)(small ? x * T(SUBNORMAL) : x);
    const word k = (word)((bits)pattern - (bits)T(ROOT_HALF)) >> T(MANTISSA);
    const real m = T(from_word)((word)((bits)pattern - ((bits)k << T(MANTISSA)))) - (real)1;
    const real n = (real)(k - (small ? T(SUBNORMAL_BITS) : 0));
    const real l = T(mad)(n, T(LN2_HI), m + T(mad)(n, T(LN2_LO), T(log_tail)(m)));
    const real finite = x > 0 ? (x < (real)INFINITY ? l : x) : (x == 0 ? -(real)INFINITY : (real)NAN);
    return x != x ? x : finite;
}

INLINE real T(log1p)(real x) {
    const word large = x > T(LARGE);
    const real y = large ? x / T(LARGE) : x;
    const real one = large ? (real)0 : (real)1;
    const word k = (word)((bits)T(to_word)(one + y) - (bits)T(ROOT_HALF)) >> T(MANTISSA);
    const real scale = T(two_to)(-k);
    const real m = T(mad)(y, scale, T(mad)(one, scale, (real)-1));
    const real n = (real)(k + (large ? T(LARGE_BITS) : 0));
    const real l = T(mad)(n, T(LN2_HI), m + T(mad)(n, T(LN2_LO), T(log_tail)(m)));
    const real finite = x > -1 ? (x < (real)INFINITY ? l : x) : (x == -1 ? -(real)INFINITY : (real)NAN);
    return x != x ? x : T(copysign)(T(abs)(finite), x);
}

INLINE real T(erf)(real x) {
    const real a = T(abs)(x) > T(ERF_LAST) ? T(ERF_LAST) : T(abs)(x);
    const real near = T(mad)(x, T(erf_small)(x * x), x);
    const real square = a * a, rest = T(fma)(a, a, -square);
    const real e = T(exp_minus)(square) * ((real)1 - rest);
    const real t = (a - T(ERF_CENTRE)) / (a + T(ERF_CENTRE));
    const real far = (real)1 - e * T(erf_large)(t) / ((real)1 + (real)2 * a);
    return a < 1 ? near : T(copysign)(far, x);
}

INLINE real T(rsqrt)(real x) { return (real)1 / T(sqrt)(x); }

INLINE real T(sign)(real x) { return (real)((x > 0) - (x < 0)); }

/* NaN wins, whichever of the two it is. */
INLINE real T(minimum)(real x, real y) { return (x < y) | (x != x) ? x : y; }

INLINE real T(maximum)(real x, real y) { return (x > y) | (x != x) ? x : y; }

#undef NEAREST
#undef real
#undef word
#undef bits
