/* What the functions of functions.h need to know of single precision. Polynomials are minimax fits (Remez, 50 digits), rounded to single. */

typedef float f_real;
typedef int32_t f_word;
typedef uint32_t f_bits;

#define f_MANTISSA 23
#define f_BIAS 127
#define f_MAGIC 12582912.0f
#define f_ROOT_HALF 0x3f3504f3
#define f_TINY 0x1p-126f
#define f_SUBNORMAL 0x1p24f
#define f_SUBNORMAL_BITS 24
#define f_LARGE 0x1p60f
#define f_LARGE_BITS 60
#define f_LOG2_E 1.44269504f
#define f_LN2_HI 0.693145752f
#define f_LN2_LO 1.42860677e-6f
#define f_OVERFLOW 89.0f
#define f_UNDERFLOW 104.0f
#define f_LIFT 64
#define f_MINUS_ONE 20.0f
#define f_SOFTPLUS_LAST INFINITY
#define f_ERF_CENTRE 2.0f
#define f_ERF_LAST 4.0f

#define f_abs(x) __builtin_fabsf(x)
#define f_sqrt(x) __builtin_sqrtf(x)
#define f_floor(x) __builtin_floorf(x)
#define f_copysign(x, y) __builtin_copysignf(x, y)
#define f_fma(x, y, z) __builtin_fmaf(x, y, z)

/* (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2. */
INLINE float f_exp_tail(float r) {
    float p = f_mad(1.3946431e-3f, r, 8.366572e-3f);
    p = f_mad(p, r, 4.1666284e-2f);
    p = f_mad(p, r, 1.6666543e-1f);
    return f_mad(p, r, 0.5f);
}

/* log(1 + m) - m for 1 + m between the roots of 1/2 and 2. */
INLINE float f_log_tail(float m) {
    float p = f_mad(-7.86574e-2f, m, 1.2883379e-1f);
    p = f_mad(p, m, -1.3126992e-1f);
    p = f_mad(p, m, 1.4180934e-1f);
    p = f_mad(p, m, -1.6624765e-1f);
    p = f_mad(p, m, 2.0002298e-1f);
    p = f_mad(p, m, -2.5000802e-1f);
    p = f_mad(p, m, 3.3333316e-1f);
    p = f_mad(p, m, -0.5f);
    return m * m * p;
}

/* log(1 + e) for 0 <= e <= 1. */
INLINE float f_log1p_unit(float e) {
    float p = f_mad(-3.3184746e-3f, e, 2.0204594e-2f);
    p = f_mad(p, e, -5.7664462e-2f);
    p = f_mad(p, e, 1.0680557e-1f);
    p = f_mad(p, e, -1.5355397e-1f);
    p = f_mad(p, e, 1.96954e-1f);
    p = f_mad(p, e, -2.4958588e-1f);
    p = f_mad(p, e, 3.333051e-1f);
    p = f_mad(p, e, -4.999993e-1f);
    return f_mad(e * e, p, e);
}

/* erf(x) / x - 1 of z = x^2 <= 1. */
INLINE float f_erf_small(float z) {
    float p = f_mad(7.885847e-5f, z, -8.0199435e-4f);
    p = f_mad(p, z, 5.189444e-3f);
    p = f_mad(p, z, -2.6854401e-2f);
    p = f_mad(p, z, 1.12835996e-1f);
    p = f_mad(p, z, -3.7612626e-1f);
    return f_mad(p, z, 1.2837917e-1f);
}

/* erfc(a) exp(a^2) (1 + 2 a) of t = (a - 2) / (a + 2), for a between 1 and 4. */
INLINE float f_erf_large(float t) {
    float p = f_mad(1.1526492e-3f, t, 8.406319e-3f);
    p = f_mad(p, t, -8.0230385e-3f);
    p = f_mad(p, t, -5.4198224e-2f);
    p = f_mad(p, t, 1.6405089e-1f);
    p = f_mad(p, t, -1.6603088e-1f);
    p = f_mad(p, t, -9.2763826e-2f);
    return f_mad(p, t, 1.2769784f);
}
