/* Sine, cosine and powers in double precision; single precision borrows them. */

/* Beyond this the multiple of pi / 2 that is taken off would be uncertain, and the result is NaN. */
#define FARTHEST 0x1p45

/* sin(r) or cos(r), with a sign, for x = r + k pi / 2; `quarter` is 1 to ask for the cosine of x. */
INLINE double d_circular(double x, int64_t quarter) {
    const double shifted = d_mad(x, 0x1.45f306dc9c883p-1, d_MAGIC), n = shifted - d_MAGIC;
    const int64_t k = (int64_t)((uint64_t)d_to_word(shifted) + (uint64_t)quarter);
    double r = d_fma(n, -0x1.921fb54442d18p+0, x);
    r = d_fma(n, -0x1.1a62633145c07p-54, r);
    r = d_fma(n, 0x1.f1976b7ed8fbcp-110, r);
    const double z = r * r;
    double s = d_mad(-7.578702246062143e-13, z, 1.6058366737599697e-10);
    s = d_mad(s, z, -2.5052104912670733e-08);
    s = d_mad(s, z, 2.7557319214195704e-06);
    s = d_mad(s, z, -0.0001984126984125508);
    s = d_mad(s, z, 0.008333333333333323);
    s = d_mad(s, z, -0.16666666666666666);
    s = d_mad(s * z, r, r);
    double c = d_mad(4.7381363051504107e-14, z, -1.1470293987875759e-11);
    c = d_mad(c, z, 2.0876754373792035e-09);
    c = d_mad(c, z, -2.755731921541692e-07);
    c = d_mad(c, z, 2.4801587301571615e-05);
    c = d_mad(c, z, -0.0013888888888888874);
    c = d_mad(c, z, 0.041666666666666664);
    const double half = 0.5 * z, most = 1.0 - half;
    c = most + (((1.0 - most) - half) + z * z * c);
    const double value = k & 1 ? c : s;
    const double signed_value = k & 2 ? -value : value;
    return d_abs(x) <= FARTHEST ? signed_value : (double)NAN;
}

INLINE double d_sin(double x) { return x == 0 ? x : d_circular(x, 0); }

INLINE double d_cos(double x) { return d_circular(x, 1); }

/* x to the power of y. The logarithm is a sum of two numbers, because its error is multiplied by the exponent. */
INLINE double d_pow(double x, double y) {
    const double a = d_abs(x);
    const int64_t small = a < d_TINY;
    const int64_t pattern = d_to_word(small ? a * d_SUBNORMAL : a);
    const int64_t k = (int64_t)((uint64_t)pattern - (uint64_t)d_ROOT_HALF) >> d_MANTISSA;
    const double mantissa = d_from_word((int64_t)((uint64_t)pattern - ((uint64_t)k << d_MANTISSA))), f = mantissa - 1.0;
    const double n = (double)(k - (small ? d_SUBNORMAL_BITS : 0));
    /* s = f / (2 + f), and what rounding took from it. */
    const double d = mantissa + 1.0, rest = mantissa - (d - 1.0), s = f / d;
    const double s_low = d_fma(-s, rest, d_fma(-s, d, f)) / d;
    /* log = 2 s + 2/3 s^3 + s^5 (...). */
    const double z = s * s, z_low = d_fma(s, s, -z) + 2.0 * s * s_low;
    const double cube = s * z, cube_low = d_fma(s, z, -cube) + (s * z_low + s_low * z);
    const double third = cube * 0x1.5555555555555p-1;
    const double third_low = d_fma(cube, 0x1.5555555555555p-1, -third) + (cube * 0x1.5555555555555p-55 + cube_low * 0x1.5555555555555p-1);
    const double tail = cube * z * d_atanh_tail(z);
    /* Summed from large to small, keeping what rounding takes. */
    const double twos = n * d_LN2_HI, first = 2.0 * s, sum = twos + first;
    const double sum_low = k == 0 ? 0.0 : first - (sum - twos);
    const double high = sum + third, back = high - sum;
    const double high_low = (sum - (high - back)) + (third - back);
    const double low = sum_low + high_low + (2.0 * s_low + third_low + tail + n * d_LN2_LO);
    const double log_high = high + low, log_low = low - (log_high - high);
    const double product = y * log_high;
    const double correction = d_fma(y, log_high, -product) + y * log_low;
    const double grown = d_exp(product);
    const double size = (grown > 0) & (grown < (double)INFINITY) ? d_fma(grown, correction, grown) : grown;
    const double at_zero = y < 0 ? (double)INFINITY : 0.0, at_infinity = y < 0 ? 0.0 : (double)INFINITY;
    const double inside = a == 1 ? 1.0 : size, below = a < (double)INFINITY ? inside : at_infinity;
    const double usual = a == 0 ? at_zero : below;
    /* Whole numbers are their own floor, even ones twice that of their half. */
    const int64_t whole = d_floor(y) == y, odd = whole & (d_floor(0.5 * y) * 2.0 != y);
    const int64_t special = (a == 0) | (a == (double)INFINITY), negative = d_to_word(x) < 0;
    const double of_negative = odd ? -usual : (whole | special ? usual : (double)NAN);
    const double value = negative ? of_negative : usual;
    return (x == 1) | (y == 0) ? 1.0 : ((x != x) | (y != y) ? x + y : value);
}

INLINE float f_sin(float x) { return (float)d_sin(x); }

INLINE float f_cos(float x) { return (float)d_cos(x); }

INLINE float f_pow(float x, float y) { return (float)d_pow(x, y); }
