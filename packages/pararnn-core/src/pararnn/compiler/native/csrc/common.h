/* What everything needs. The program's own sums and products are never contracted, so that scalar and vector code round alike. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* x * y + z in one rounding where the processor has that, otherwise in two: where either is accurate enough. */
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
#define f_mad(x, y, z) __builtin_fmaf((x), (y), (z))
#define d_mad(x, y, z) __builtin_fma((x), (y), (z))
#else
#define f_mad(x, y, z) ((x) * (y) + (z))
#define d_mad(x, y, z) ((x) * (y) + (z))
#endif

/* A loop that calls a function is not made vector code, however long the function is. */
#define INLINE static inline __attribute__((always_inline))

/* Passes are vector code of their own; copied into every caller they would take longer to compile. */
#define APART __attribute__((noinline))
