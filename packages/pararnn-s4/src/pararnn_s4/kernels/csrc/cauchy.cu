// Cauchy products: sum over n of v_n / (z_l - w_n), with the conjugate partners where SYMMETRIC, and their gradients.
//
// A pair of partners is one fraction, (2 Re(v) zeta - 2 Im(v) Im(w)) / (zeta^2 + Im(w)^2) with zeta = z - Re(w); the denominator comes from
// the product (Im(z) - Im(w)) (Im(z) + Im(w)), never expanded, so that nodes beside a pole keep their digits.
// Layout: v (groups, copies, state), w (copies, state), z (1 or copies, length), results (groups, copies, length).
// Products: a thread owns NODES nodes of one row and walks the state. Sums: a lane owns one entry of the state and walks the nodes.

#include "common.cuh"
#include "kernels.h"

namespace pararnn_s4 {
namespace {

constexpr int THREADS = 128;
constexpr int TABLE = 128;
constexpr int LANES = 32;
constexpr int WARPS = 8;

template <typename T>
__device__ __forceinline__ Complex<T> inverse_of(T re, T im) {
  const T size = reciprocal(re * re + im * im);
  return make<T>(re * size, -im * size);
}

template <typename T, int NODES, bool SYMMETRIC>
__global__ void __launch_bounds__(THREADS)
    products(const Complex<T>* v, const Complex<T>* z, const Complex<T>* w, Complex<T>* out, int64_t copies, int state, int64_t length,
             int64_t node_stride) {
  __shared__ Complex<T> pole[TABLE], numerator[TABLE];
  const int64_t copy = blockIdx.y;
  const int64_t row = blockIdx.z * copies + copy;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS * NODES + threadIdx.x;
  Complex<T> node[NODES], sum[NODES];
#pragma unroll
  for (int j = 0; j < NODES; ++j) {
    node[j] = z[copy * node_stride + min(first + j * THREADS, length - 1)];
    sum[j] = make<T>(0, 0);
  }
  for (int start = 0; start < state; start += TABLE) {
    const int count = min(TABLE, state - start);
    __syncthreads();
    for (int n = threadIdx.x; n < count; n += THREADS) {
      pole[n] = w[copy * state + start + n];
      numerator[n] = v[row * state + start + n];
    }
    __syncthreads();
    for (int n = 0; n < count; ++n) {
      const Complex<T> a = numerator[n], b = pole[n];
      const T cross = -a.y * b.y;
#pragma unroll
      for (int j = 0; j < NODES; ++j) {
        const T re = node[j].x - b.x;
        if (SYMMETRIC) {
          const T im = node[j].y;
          const Complex<T> part = inverse_of<T>(re * re - (im - b.y) * (im + b.y), 2 * re * im);
          const T top_re = fma(a.x, re, cross), top_im = a.x * im;
          sum[j].x += top_re * part.x - top_im * part.y;
          sum[j].y += top_re * part.y + top_im * part.x;
        } else {
          const Complex<T> term = multiply(a, inverse_of<T>(re, node[j].y - b.y));
          sum[j].x += term.x;
          sum[j].y += term.y;
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < NODES; ++j) {
    const int64_t place = first + j * THREADS;
    if (place < length) out[row * length + place] = SYMMETRIC ? make<T>(2 * sum[j].x, 2 * sum[j].y) : sum[j];
  }
}

// Adds g conj(f) + conj(g) h: what a term f of v and a term h of conj(v) carry of a cotangent g.
template <typename T, bool SYMMETRIC>
__device__ __forceinline__ void carry(Complex<T>& sum, Complex<T> g, Complex<T> f, Complex<T> h) {
  if (SYMMETRIC) {
    sum.x += g.x * (f.x + h.x) + g.y * (f.y + h.y);
    sum.y += g.y * (f.x - h.x) + g.x * (h.y - f.y);
  } else {
    sum.x += g.x * f.x + g.y * f.y;
    sum.y += g.y * f.x - g.x * f.y;
  }
}

template <typename T, bool SYMMETRIC>
__global__ void __launch_bounds__(LANES* WARPS)
    sums(const Complex<T>* g, const Complex<T>* v, const Complex<T>* z, const Complex<T>* w, Complex<T>* by_v, Complex<T>* by_w, int64_t copies,
         int state, int64_t length, int64_t node_stride, int64_t tiles_of_part) {
  __shared__ Complex<T> nodes[WARPS][LANES], cotangents[WARPS][LANES];
  __shared__ Complex<T> partial[2][WARPS][LANES];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int64_t row = blockIdx.x;
  const int64_t copy = row % copies;
  const int n = blockIdx.y * LANES + lane;
  // Past the end of the state the last pole stands in: it meets no other nodes than it does anyway.
  const Complex<T> pole = w[copy * state + min(n, state - 1)];
  Complex<T> plain = make<T>(0, 0), squares = make<T>(0, 0);
  const int64_t last = min((static_cast<int64_t>(blockIdx.z) + 1) * tiles_of_part, (length + LANES - 1) / LANES);
  for (int64_t tile = blockIdx.z * tiles_of_part + warp; tile < last; tile += WARPS) {
    const int64_t own = tile * LANES + lane;
    __syncwarp();
    nodes[warp][lane] = z[copy * node_stride + min(own, length - 1)];
    cotangents[warp][lane] = own < length ? g[row * length + own] : make<T>(0, 0);
    __syncwarp();
#pragma unroll 8
    for (int l = 0; l < LANES; ++l) {
      const Complex<T> node = nodes[warp][l], cotangent = cotangents[warp][l];
      const T re = node.x - pole.x;
      const Complex<T> f = inverse_of<T>(re, node.y - pole.y);
      const Complex<T> h = SYMMETRIC ? inverse_of<T>(re, node.y + pole.y) : f;
      carry<T, SYMMETRIC>(plain, cotangent, f, h);
      carry<T, SYMMETRIC>(squares, cotangent, multiply(f, f), multiply(h, h));
    }
  }
  partial[0][warp][lane] = plain;
  partial[1][warp][lane] = squares;
  __syncthreads();
  if (warp > 0 || n >= state) return;
  for (int other = 1; other < WARPS; ++other) {
    plain.x += partial[0][other][lane].x;
    plain.y += partial[0][other][lane].y;
    squares.x += partial[1][other][lane].x;
    squares.y += partial[1][other][lane].y;
  }
  const int64_t place = (static_cast<int64_t>(blockIdx.z) * gridDim.x + row) * state + n;
  const Complex<T> a = v[row * state + n];
  by_v[place] = plain;
  by_w[place] = multiply(make<T>(a.x, -a.y), squares);
}

template <typename T, bool SYMMETRIC>
__global__ void __launch_bounds__(THREADS)
    nodes(const Complex<T>* g, const Complex<T>* v, const Complex<T>* z, const Complex<T>* w, Complex<T>* by_z, int64_t groups, int64_t copies,
          int state, int64_t length, int64_t node_stride) {
  const int64_t l = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t copy = blockIdx.y;
  if (l >= length) return;
  const Complex<T> node = z[copy * node_stride + l];
  Complex<T> result = make<T>(0, 0);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t row = group * copies + copy;
    Complex<T> slope = make<T>(0, 0);
    for (int n = 0; n < state; ++n) {
      const Complex<T> a = v[row * state + n], pole = w[copy * state + n];
      const Complex<T> f = inverse_of<T>(node.x - pole.x, node.y - pole.y);
      Complex<T> term = multiply(a, multiply(f, f));
      slope.x -= term.x;
      slope.y -= term.y;
      if (SYMMETRIC) {
        const Complex<T> h = inverse_of<T>(node.x - pole.x, node.y + pole.y);
        term = multiply(make<T>(a.x, -a.y), multiply(h, h));
        slope.x -= term.x;
        slope.y -= term.y;
      }
    }
    const Complex<T> product = multiply(g[row * length + l], make<T>(slope.x, -slope.y));
    result.x += product.x;
    result.y += product.y;
  }
  by_z[copy * length + l] = result;
}

template <typename T>
const Complex<T>* as_complex(const T* values) {
  return reinterpret_cast<const Complex<T>*>(values);
}
template <typename T>
Complex<T>* as_complex(T* values) {
  return reinterpret_cast<Complex<T>*>(values);
}

}  // namespace

template <typename T>
void cauchy_products(const T* v, const T* z, const T* w, T* out, int64_t groups, int64_t copies, int state, int64_t length, int64_t node_stride,
                     bool symmetric, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int nodes_of_thread) {
    const dim3 grid(ceil_div(length, THREADS * nodes_of_thread), copies, groups);
    kernel<<<grid, THREADS, 0, stream>>>(as_complex(v), as_complex(z), as_complex(w), as_complex(out), copies, state, length, node_stride);
  };
  // Short sequences need many threads more than they need few reads of the poles.
  if (length <= 2048) {
    symmetric ? launch(products<T, 1, true>, 1) : launch(products<T, 1, false>, 1);
  } else {
    symmetric ? launch(products<T, 4, true>, 4) : launch(products<T, 4, false>, 4);
  }
}

int64_t cauchy_parts(int64_t rows, int state, int64_t length) {
  const int64_t tiles = ceil_div(length, LANES), blocks = rows * ceil_div(state, LANES);
  return std::max<int64_t>(1, std::min(ceil_div(tiles, 2 * WARPS), ceil_div(ENOUGH_BLOCKS, blocks)));
}

template <typename T>
void cauchy_sums(const T* g, const T* v, const T* z, const T* w, T* by_v, T* by_w, int64_t rows, int64_t copies, int state, int64_t length,
                 int64_t node_stride, int64_t parts, bool symmetric, cudaStream_t stream) {
  const dim3 grid(rows, ceil_div(state, LANES), parts), block(LANES, WARPS);
  const int64_t tiles = ceil_div(ceil_div(length, LANES), parts);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, block, 0, stream>>>(as_complex(g), as_complex(v), as_complex(z), as_complex(w), as_complex(by_v), as_complex(by_w), copies, state,
                                       length, node_stride, tiles);
  };
  symmetric ? launch(sums<T, true>) : launch(sums<T, false>);
}

template <typename T>
void cauchy_nodes(const T* g, const T* v, const T* z, const T* w, T* by_z, int64_t groups, int64_t copies, int state, int64_t length,
                  int64_t node_stride, bool symmetric, cudaStream_t stream) {
  const dim3 grid(ceil_div(length, THREADS), copies);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, THREADS, 0, stream>>>(as_complex(g), as_complex(v), as_complex(z), as_complex(w), as_complex(by_z), groups, copies, state, length,
                                         node_stride);
  };
  symmetric ? launch(nodes<T, true>) : launch(nodes<T, false>);
}

#define INSTANTIATE(T)                                                                                                                     \
  template void cauchy_products<T>(const T*, const T*, const T*, T*, int64_t, int64_t, int, int64_t, int64_t, bool, cudaStream_t);        \
  template void cauchy_sums<T>(const T*, const T*, const T*, const T*, T*, T*, int64_t, int64_t, int, int64_t, int64_t, int64_t, bool,   \
                               cudaStream_t);                                                                                            \
  template void cauchy_nodes<T>(const T*, const T*, const T*, const T*, T*, int64_t, int64_t, int, int64_t, int64_t, bool, cudaStream_t);

INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace pararnn_s4
