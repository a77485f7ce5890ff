// Vandermonde products: sum over n of v_n exp(x_n l) (products), and sums over l of u_l exp(x_n l) with their first moments (sums).
//
// Layout: v (groups, copies, state), x (copies, state), u and results of products (groups, copies, length).
// Products: a thread owns STEPS steps of one row, THREADS apart, and walks the state; the exponential of each is the one before times a
// constant, at most STEPS - 1 times. Sums: a lane owns one entry of the state and walks time in chunks of CHUNK steps by Horner's rule, whose
// derivative gives the moment; nothing is added across lanes. The order of every sum is fixed.

#include "common.cuh"
#include "kernels.h"

namespace pararnn_s4 {
namespace {

constexpr int THREADS = 128;
constexpr int TABLE = 64;
constexpr int LANES = 32;
constexpr int WARPS = 8;
constexpr int CHUNK = 16;

template <typename T, int STEPS, bool SYMMETRIC>
__global__ void __launch_bounds__(THREADS) products(const Complex<T>* v, const Complex<T>* x, T* out, int64_t copies, int state, int64_t length) {
  __shared__ T real[TABLE], turn[TABLE], rest[TABLE];
  __shared__ Complex<T> ratio[TABLE], weight[TABLE];
  const int64_t copy = blockIdx.y;
  const int64_t row = blockIdx.z * copies + copy;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS * STEPS + threadIdx.x;
  T sum_real[STEPS] = {}, sum_imag[STEPS] = {};
  for (int start = 0; start < state; start += TABLE) {
    const int count = min(TABLE, state - start);
    __syncthreads();
    if (threadIdx.x < count) {
      const Exponent<T> exponent(x[copy * state + start + threadIdx.x]);
      real[threadIdx.x] = exponent.real;
      turn[threadIdx.x] = exponent.turn;
      rest[threadIdx.x] = exponent.rest;
      ratio[threadIdx.x] = exponent(static_cast<T>(THREADS));
      weight[threadIdx.x] = v[row * state + start + threadIdx.x];
    }
    __syncthreads();
    for (int n = 0; n < count; ++n) {
      Exponent<T> exponent(make<T>(0, 0));
      exponent.real = real[n];
      exponent.turn = turn[n];
      exponent.rest = rest[n];
      Complex<T> term = multiply(weight[n], exponent(static_cast<T>(first)));
      const Complex<T> factor = ratio[n];
#pragma unroll
      for (int j = 0; j < STEPS; ++j) {
        sum_real[j] += term.x;
        if (!SYMMETRIC) sum_imag[j] += term.y;
        term = multiply(term, factor);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < STEPS; ++j) {
    const int64_t step = first + static_cast<int64_t>(j) * THREADS;
    if (step < length) {
      if (SYMMETRIC) {
        out[row * length + step] = 2 * sum_real[j];
      } else {
        reinterpret_cast<Complex<T>*>(out)[row * length + step] = make<T>(sum_real[j], sum_imag[j]);
      }
    }
  }
}

template <typename T, bool COMPLEX, bool MOMENT>
__global__ void __launch_bounds__(LANES* WARPS)
    sums(const T* u, const Complex<T>* x, const Complex<T>* v, Complex<T>* plain, Complex<T>* moment, int64_t copies, int state, int64_t length,
         int64_t chunks_of_part, T factor, bool conjugate) {
  constexpr int PLANES = COMPLEX ? 2 : 1;
  __shared__ T staged[WARPS][CHUNK * PLANES];
  __shared__ Complex<T> partial[2][WARPS][LANES];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int64_t row = blockIdx.x;
  const int64_t copy = row % copies;
  const int n = blockIdx.y * LANES + lane;
  const Exponent<T> exponent(n < state ? x[copy * state + n] : make<T>(0, 0));
  const Complex<T> ratio = exponent(static_cast<T>(1));
  Complex<T> sum = make<T>(0, 0), weighted = make<T>(0, 0);
  const int64_t last = min((static_cast<int64_t>(blockIdx.z) + 1) * chunks_of_part, (length + CHUNK - 1) / CHUNK);
  for (int64_t chunk = blockIdx.z * chunks_of_part + warp; chunk < last; chunk += WARPS) {
    const int64_t first = chunk * CHUNK;
    const int count = static_cast<int>(min(static_cast<int64_t>(CHUNK), length - first));
    __syncwarp();
    if (lane < CHUNK * PLANES) staged[warp][lane] = lane < count * PLANES ? u[(row * length + first) * PLANES + lane] : 0;
    __syncwarp();
    Complex<T> value = make<T>(0, 0), slope = make<T>(0, 0);
#pragma unroll
    for (int j = CHUNK - 1; j >= 0; --j) {
      if (MOMENT) {
        slope = multiply(slope, ratio);
        slope.x += value.x;
        slope.y += value.y;
      }
      value = multiply(value, ratio);
      value.x += staged[warp][j * PLANES];
      if (COMPLEX) value.y += staged[warp][j * PLANES + 1];
    }
    const Complex<T> start = exponent(static_cast<T>(first));
    if (MOMENT) {
      slope = multiply(slope, ratio);
      slope.x += static_cast<T>(first) * value.x;
      slope.y += static_cast<T>(first) * value.y;
      slope = multiply(slope, start);
      weighted.x += slope.x;
      weighted.y += slope.y;
    }
    value = multiply(value, start);
    sum.x += value.x;
    sum.y += value.y;
  }
  partial[0][warp][lane] = sum;
  partial[1][warp][lane] = weighted;
  __syncthreads();
  if (warp > 0 || n >= state) return;
  for (int other = 1; other < WARPS; ++other) {
    sum.x += partial[0][other][lane].x;
    sum.y += partial[0][other][lane].y;
    weighted.x += partial[1][other][lane].x;
    weighted.y += partial[1][other][lane].y;
  }
  const int64_t place = (static_cast<int64_t>(blockIdx.z) * gridDim.x + row) * state + n;
  if (plain) plain[place] = make<T>(factor * sum.x, conjugate ? -factor * sum.y : factor * sum.y);
  if (MOMENT) {
    const Complex<T> product = multiply(v[row * state + n], weighted);
    moment[place] = make<T>(factor * product.x, -factor * product.y);
  }
}

template <typename T, bool SYMMETRIC>
void launch_products(const T* v, const T* x, T* out, int64_t groups, int64_t copies, int state, int64_t length, cudaStream_t stream) {
  const auto* numerators = reinterpret_cast<const Complex<T>*>(v);
  const auto* exponents = reinterpret_cast<const Complex<T>*>(x);
  const auto grid = [&](int steps) { return dim3(ceil_div(length, THREADS * steps), copies, groups); };
  // Short sequences need many threads more than they need long walks.
  if (length <= 4096) {
    products<T, 4, SYMMETRIC><<<grid(4), THREADS, 0, stream>>>(numerators, exponents, out, copies, state, length);
  } else {
    products<T, 16, SYMMETRIC><<<grid(16), THREADS, 0, stream>>>(numerators, exponents, out, copies, state, length);
  }
}

}  // namespace

template <typename T>
void vandermonde_products(const T* v, const T* x, T* out, int64_t groups, int64_t copies, int state, int64_t length, bool symmetric,
                          cudaStream_t stream) {
  if (symmetric) {
    launch_products<T, true>(v, x, out, groups, copies, state, length, stream);
  } else {
    launch_products<T, false>(v, x, out, groups, copies, state, length, stream);
  }
}

int64_t vandermonde_parts(int64_t rows, int state, int64_t length) {
  const int64_t chunks = ceil_div(length, CHUNK), blocks = rows * ceil_div(state, LANES);
  return std::max<int64_t>(1, std::min(ceil_div(chunks, 4 * WARPS), ceil_div(ENOUGH_BLOCKS, blocks)));
}

template <typename T>
void vandermonde_sums(const T* u, const T* x, const T* v, T* plain, T* moment, int64_t rows, int64_t copies, int state, int64_t length, int64_t parts,
                      bool complex_input, bool conjugate, double factor, cudaStream_t stream) {
  const dim3 grid(rows, ceil_div(state, LANES), parts), block(LANES, WARPS);
  const int64_t chunks = ceil_div(ceil_div(length, CHUNK), parts);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, block, 0, stream>>>(u, reinterpret_cast<const Complex<T>*>(x), reinterpret_cast<const Complex<T>*>(v),
                                       reinterpret_cast<Complex<T>*>(plain), reinterpret_cast<Complex<T>*>(moment), copies, state, length, chunks,
                                       static_cast<T>(factor), conjugate);
  };
  if (complex_input) {
    moment ? launch(sums<T, true, true>) : launch(sums<T, true, false>);
  } else {
    moment ? launch(sums<T, false, true>) : launch(sums<T, false, false>);
  }
}

template void vandermonde_products<float>(const float*, const float*, float*, int64_t, int64_t, int, int64_t, bool, cudaStream_t);
template void vandermonde_products<double>(const double*, const double*, double*, int64_t, int64_t, int, int64_t, bool, cudaStream_t);
template void vandermonde_sums<float>(const float*, const float*, const float*, float*, float*, int64_t, int64_t, int, int64_t, int64_t, bool, bool,
                                      double, cudaStream_t);
template void vandermonde_sums<double>(const double*, const double*, const double*, double*, double*, int64_t, int64_t, int, int64_t, int64_t, bool,
                                       bool, double, cudaStream_t);

}  // namespace pararnn_s4
