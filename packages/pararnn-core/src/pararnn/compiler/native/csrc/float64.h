/* What the functions of functions.h need to know of double precision. Polynomials are minimax fits (Remez, 50 digits). */

typedef double d_real;
typedef int64_t d_word;
typedef uint64_t d_bits;

#define d_MANTISSA 52
#define d_BIAS 1023
#define d_MAGIC 6755399441055744.0
#define d_ROOT_HALF 0x3fe6a09e667f3bcdLL
#define d_TINY 0x1p-1022
#define d_SUBNORMAL 0x1p54
#define d_SUBNORMAL_BITS 54
#define d_LARGE 0x1p500
#define d_LARGE_BITS 500
#define d_LOG2_E 1.4426950408889634
#define d_LN2_HI 0x1.62e42fefa3800p-1
#define d_LN2_LO 0x1.ef35793c76730p-45
#define d_OVERFLOW 710.0
#define d_UNDERFLOW 746.0
#define d_LIFT 512
#define d_MINUS_ONE 40.0
#define d_SOFTPLUS_LAST 20.0
#define d_ERF_CENTRE 2.4
#define d_ERF_LAST 6.0

#define d_abs(x) __builtin_fabs(x)
#define d_sqrt(x) __builtin_sqrt(x)
#define d_floor(x) __builtin_floor(x)
#define d_copysign(x, y) __builtin_copysign(x, y)
#define d_fma(x, y, z) __builtin_fma(x, y, z)

/* (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2. */
INLINE double d_exp_tail(double r) {
    double p = d_mad(2.0924434124743313e-09, r, 2.5109023081046012e-08);
    p = d_mad(p, r, 2.7557242795354346e-07);
    p = d_mad(p, r, 2.755724424907172e-06);
    p = d_mad(p, r, 2.4801587360503007e-05);
    p = d_mad(p, r, 0.0001984126988608603);
    p = d_mad(p, r, 0.0013888888888866874);
    p = d_mad(p, r, 0.008333333333321648);
    p = d_mad(p, r, 0.0416666666666667);
    p = d_mad(p, r, 0.16666666666666677);
    return d_mad(p, r, 0.5);
}

/* (log((1 + s) / (1 - s)) - 2 s) / s^3 of z = s^2, for (1 + s) / (1 - s) between the roots of 1/2 and 2; without its first term, and over z. */
INLINE double d_atanh_tail(double z) {
    double p = d_mad(0.13248525592480512, z, 0.13250479057167036);
    p = d_mad(p, z, 0.153870718094464);
    p = d_mad(p, z, 0.1818177618642131);
    p = d_mad(p, z, 0.22222222638801584);
    p = d_mad(p, z, 0.28571428569153146);
    return d_mad(p, z, 0.4000000000000597);
}

/* log(1 + m) - m for 1 + m between the roots of 1/2 and 2. */
INLINE double d_log_tail(double m) {
    const double s = m / (2.0 + m), z = s * s, half = 0.5 * m * m;
    return s * (half + z * d_mad(d_atanh_tail(z), z, 0.6666666666666666)) - half;
}

/* log(1 + e) for 0 <= e <= 1. */
INLINE double d_log1p_unit(double e) {
    const int64_t large = e > 0.41421356237309503;
    const double m = large ? d_mad(e, 0.5, -0.5) : e;
    return m + (d_log_tail(m) + (large ? 0.6931471805599453 : 0.0));
}

/* erf(x) / x - 1 of z = x^2 <= 1. */
INLINE double d_erf_small(double z) {
    double p = d_mad(5.957985641713233e-11, z, -1.1373402997998622e-09);
    p = d_mad(p, z, 1.4659938736528675e-08);
    p = d_mad(p, z, -1.6350340069952753e-07);
    p = d_mad(p, z, 1.6461003361915344e-06);
    p = d_mad(p, z, -1.4925595465086955e-05);
    p = d_mad(p, z, 0.00012055331120692095);
    p = d_mad(p, z, -0.0008548326981104121);
    p = d_mad(p, z, 0.0052239776248231085);
    p = d_mad(p, z, -0.026866170645077358);
    p = d_mad(p, z, 0.11283791670954882);
    p = d_mad(p, z, -0.3761263890318375);
    return d_mad(p, z, 0.1283791670955126);
}

/* erfc(a) exp(a^2) (1 + 2 a) of t = (a - 2.4) / (a + 2.4), for a between 1 and 6. */
INLINE double d_erf_large(double t) {
    double p = d_mad(-2.210972717631806e-06, t, -1.96889017795616e-06);
    p = d_mad(p, t, 9.148711524613072e-06);
    p = d_mad(p, t, 1.8611678817198658e-05);
    p = d_mad(p, t, -2.56848786047527e-05);
    p = d_mad(p, t, -0.0001142804070282103);
    p = d_mad(p, t, 5.8349515316317165e-05);
    p = d_mad(p, t, 0.0006553899902544945);
    p = d_mad(p, t, -0.00023856082252559987);
    p = d_mad(p, t, -0.0040632417764113575);
    p = d_mad(p, t, 0.004451735986086221);
    p = d_mad(p, t, 0.024288066205288592);
    p = d_mad(p, t, -0.09610182065624641);
    p = d_mad(p, t, 0.16147229812174727);
    p = d_mad(p, t, -0.1112542156573185);
    p = d_mad(p, t, -0.11806526673071284);
    return d_mad(p, t, 1.2672926603147934);
}
