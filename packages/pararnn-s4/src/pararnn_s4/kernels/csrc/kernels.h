// What the CUDA sources offer to the bindings. Pointers to complex arrays are pointers to their real parts; `rows` is groups times copies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace pararnn_s4 {

// Sums over few rows are cut into parts until about so many blocks run.
constexpr int64_t ENOUGH_BLOCKS = 1024;

template <typename T>
void vandermonde_products(const T* v, const T* x, T* out, int64_t groups, int64_t copies, int state, int64_t length, bool symmetric,
                          cudaStream_t stream);

int64_t vandermonde_parts(int64_t rows, int state, int64_t length);

// plain (parts, rows, state): factor * sum, conjugated on request; moment: factor * conj(v * first moment). Either may be null.
template <typename T>
void vandermonde_sums(const T* u, const T* x, const T* v, T* plain, T* moment, int64_t rows, int64_t copies, int state, int64_t length, int64_t parts,
                      bool complex_input, bool conjugate, double factor, cudaStream_t stream);

// `node_stride` is how far the nodes of one copy lie behind those of the copy before, zero where they are shared.
template <typename T>
void cauchy_products(const T* v, const T* z, const T* w, T* out, int64_t groups, int64_t copies, int state, int64_t length, int64_t node_stride,
                     bool symmetric, cudaStream_t stream);

int64_t cauchy_parts(int64_t rows, int state, int64_t length);

// by_v, by_w (parts, rows, state): the gradients of numerators and poles where the result has cotangent g.
template <typename T>
void cauchy_sums(const T* g, const T* v, const T* z, const T* w, T* by_v, T* by_w, int64_t rows, int64_t copies, int state, int64_t length,
                 int64_t node_stride, int64_t parts, bool symmetric, cudaStream_t stream);

// by_z (copies, length): the gradient of the nodes of each copy.
template <typename T>
void cauchy_nodes(const T* g, const T* v, const T* z, const T* w, T* by_z, int64_t groups, int64_t copies, int state, int64_t length,
                  int64_t node_stride, bool symmetric, cudaStream_t stream);

}  // namespace pararnn_s4
