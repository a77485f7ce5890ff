/* Elementary functions without branches, which compilers turn into vector code; a few units in the last place.

Included once for each precision, with T(name) that gives names their prefix. NaN and infinity come through as in the C library. What is
computed for the lanes of a vector that are then not selected may overflow or be NaN; nothing traps. */

#define real T(real)
#define word T(word)
#define bits T(bits)

static inline word T(to_word)(real x) {
    union { real number; word pattern; } both = {.number = x};
    return both.pattern;
}

static inline real T(from_word)(word pattern) {
    union { word pattern; real number; } both = {.pattern = pattern};
    return both.number;
}

/* 2^k for the exponents of normal numbers; of k only the lowest bits count, as many as an exponent and the sign have. */
static inline real T(two_to)(word k) {
    return T(from_word)((word)(((bits)k << T(MANTISSA)) + ((bits)T(BIAS) << T(MANTISSA))));
}

/* The integer nearest to x times `scale`: as the number n, and in the lowest bits of k, for results far below the largest integer. */
#define NEAREST(x, scale, k, n)                                      \
    const real T(shifted) = T(mad)((x), (scale), (real)T(MAGIC));    \
    const real n = T(shifted) - (real)T(MAGIC);                      \
    const word k = T(to_word)(T(shifted));

static inline real T(exp)(real x) {
    real y = x > T(OVERFLOW) ? T(OVERFLOW) : x;
    y = y < -T(UNDERFLOW) ? -T(UNDERFLOW) : y;
    NEAREST(y, T(LOG2_E), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = (real)1 + T(mad)(r * r, T(exp_tail)(r), r);
    /* In two steps, because the result may be infinite or subnormal where the power alone has no number. */
    const word half = (word)((bits)k - (bits)T(to_word)((real)T(MAGIC))) >> 1;
    return p * T(two_to)(half) * T(two_to)((word)((bits)k - (bits)half));
}

/* exp(-a) for a >= 0, in less time. */
static inline real T(exp_minus)(real a) {
    const real y = a > T(UNDERFLOW) ? -T(UNDERFLOW) : -a;
    NEAREST(y, T(LOG2_E), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = (real)1 + T(mad)(r * r, T(exp_tail)(r), r);
    return p * T(two_to)((word)((bits)k + T(LIFT))) * T(two_to)(-T(LIFT));
}

static inline real T(expm1)(real x) {
    real y = x > T(OVERFLOW) ? T(OVERFLOW) : x;
    y = y < -T(MINUS_ONE) ? -T(MINUS_ONE) : y;
    NEAREST(y, T(LOG2_E), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = T(mad)(r * r, T(exp_tail)(r), r);
    /* Half of the power, because the largest one has no number. */
    const real half = T(two_to)((word)((bits)k - 1));
    const real scaled = T(mad)(p, half, half - (real)0.5) * (real)2;
    return T(copysign)(n == 0 ? p : scaled, x);
}

static inline real T(tanh)(real x) {
    const real a = T(abs)(x);
    const real y = a > T(MINUS_ONE) ? -T(MINUS_ONE) * (real)2 : a * (real)-2;
    NEAREST(y, T(LOG2_E), k, n)
    const real r = T(mad)(n, -T(LN2_LO), T(mad)(n, -T(LN2_HI), y));
    const real p = T(mad)(r * r, T(exp_tail)(r), r);
    const real power = T(two_to)(k);
    const real t = T(mad)(p, power, power - (real)1);
    return T(copysign)(t / ((real)2 + t), x);
}

static inline real T(sigmoid)(real x) {
    const real e = T(exp_minus)(T(abs)(x));
    return (x < 0 ? e : (real)1) / ((real)1 + e);
}

/* As torch has it: x itself above 20. */
static inline real T(softplus)(real x) {
    const real e = T(exp_minus)(T(abs)(x));
    const word large = e > (real)0.41421356237309503;
    const real m = large ? T(mad)(e, (real)0.5, (real)-0.5) : e;
    const real l = m + (T(log_tail)(m) + (large ? (real)0.6931471805599453 : (real)0));
    return x > 20 ? x : (x > 0 ? x : (real)0) + l;
}

static inline real T(log)(real x) {
    const word small = x < T(TINY);
    const word pattern = T(to_word)(small ? x * T(SUBNORMAL) : x);
    const word k = (word)((bits)pattern - (bits)T(ROOT_HALF)) >> T(MANTISSA);
    const real m = T(from_word)((word)((bits)pattern - ((bits)k << T(MANTISSA)))) - (real)1;
    const real n = (real)(k - (small ? T(SUBNORMAL_BITS) : 0));
    const real l = T(mad)(n, T(LN2_HI), m + T(mad)(n, T(LN2_LO), T(log_tail)(m)));
    const real finite = x > 0 ? (x < (real)INFINITY ? l : x) : (x == 0 ? -(real)INFINITY : (real)NAN);
    return x != x ? x : finite;
}

static inline real T(log1p)(real x) {
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

static inline real T(erf)(real x) {
    const real a = T(abs)(x) > T(ERF_LAST) ? T(ERF_LAST) : T(abs)(x);
    const real near = T(mad)(x, T(erf_small)(x * x), x);
    const real square = a * a, rest = T(fma)(a, a, -square);
    const real e = T(exp_minus)(square) * ((real)1 - rest);
    const real t = (a - T(ERF_CENTRE)) / (a + T(ERF_CENTRE));
    const real far = (real)1 - e * T(erf_large)(t) / ((real)1 + (real)2 * a);
    return a < 1 ? near : T(copysign)(far, x);
}

static inline real T(rsqrt)(real x) { return (real)1 / T(sqrt)(x); }

static inline real T(sign)(real x) { return (real)((x > 0) - (x < 0)); }

/* NaN wins, whichever of the two it is. */
static inline real T(minimum)(real x, real y) { return (x < y) | (x != x) ? x : y; }

static inline real T(maximum)(real x, real y) { return (x > y) | (x != x) ? x : y; }

#undef NEAREST
#undef real
#undef word
#undef bits
