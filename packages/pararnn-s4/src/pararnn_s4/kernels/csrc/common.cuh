// Complex numbers and exponentials that the kernels share. A complex number is a pair of reals, as torch stores it.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

namespace pararnn_s4 {

template <typename T>
struct Pair;
template <>
struct Pair<float> {
  using type = float2;
};
template <>
struct Pair<double> {
  using type = double2;
};
template <typename T>
using Complex = typename Pair<T>::type;

template <typename T>
__device__ __forceinline__ Complex<T> make(T re, T im) {
  Complex<T> value;
  value.x = re;
  value.y = im;
  return value;
}

template <typename C>
__device__ __forceinline__ C multiply(C a, C b) {
  C value;
  value.x = a.x * b.x - a.y * b.y;
  value.y = a.x * b.y + a.y * b.x;
  return value;
}

__device__ __forceinline__ float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ double reciprocal(double value) { return 1.0 / value; }

__device__ __forceinline__ void sine_cosine_of_half_turns(float halves, float* sine, float* cosine) { sincospif(halves, sine, cosine); }
__device__ __forceinline__ void sine_cosine_of_half_turns(double halves, double* sine, double* cosine) { sincospi(halves, sine, cosine); }

// An exponent x, ready for exp(x l) at many l: the phase is counted in turns, as the sum of two numbers, so that whole turns can be
// taken off exactly however long the sequence is.
template <typename T>
struct Exponent {
  T real, turn, rest;

  __device__ __forceinline__ explicit Exponent(Complex<T> x) : real(x.x) {
    constexpr bool single = sizeof(T) == 4;
    // 1 / (2 pi), rounded to the type, and what the rounding took away.
    constexpr T inverse = static_cast<T>(single ? 0.15915493667125702 : 0.15915494309189535);
    constexpr T lost = static_cast<T>(single ? 6.420638316725915e-09 : -9.839338337591243e-18);
    turn = x.y * inverse;
    rest = fma(x.y, inverse, -turn) + x.y * lost;
  }

  __device__ __forceinline__ Complex<T> operator()(T step) const {
    const T whole = rint(turn * step);
    const T part = fma(turn, step, -whole) + rest * step;
    T sine, cosine;
    sine_cosine_of_half_turns(2 * part, &sine, &cosine);
    const T size = exp(real * step);
    return make<T>(size * cosine, size * sine);
  }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace pararnn_s4
