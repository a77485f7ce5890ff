// The CUDA kernels as functions of tensors with their derivatives, in the normal form of pararnn_s4.kernels.arrange; an axis of groups that
// has one entry may be left out, which spares autograd two views.
//
// First derivatives are kernels; a second derivative (create_graph=True) goes through the definition in plain torch operations.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <functional>

#include "kernels.h"

namespace pararnn_s4 {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
namespace autograd = torch::autograd;

int64_t groups_of(const Tensor& numerators) { return numerators.dim() == 3 ? numerators.size(0) : 1; }

// The sizes of `like` with another last one.
std::vector<int64_t> with_last(const Tensor& like, int64_t last) {
  auto sizes = like.sizes().vec();
  sizes.back() = last;
  return sizes;
}

// A tensor that kernels can read: dense, and without a pending conjugation.
Tensor plain(const Tensor& tensor) { return tensor.detach().resolve_conj().resolve_neg().contiguous(); }

template <typename T>
T* data(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

bool single(const Tensor& tensor) { return tensor.scalar_type() == torch::kComplexFloat; }

cudaStream_t stream_of(const Tensor& tensor) { return c10::cuda::getCurrentCUDAStream(tensor.get_device()).stream(); }

Tensor products(const Tensor& v_given, const Tensor& x_given, int64_t length, bool symmetric) {
  const c10::cuda::CUDAGuard guard(v_given.device());
  const Tensor v = plain(v_given), x = plain(x_given);
  const auto kind = symmetric ? c10::toRealValueType(v.scalar_type()) : v.scalar_type();
  Tensor out = torch::empty(with_last(v, length), v.options().dtype(kind));
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    vandermonde_products<T>(data<T>(v), data<T>(x), data<T>(out), groups_of(v), v.size(-2), v.size(-1), length, symmetric, stream_of(v));
  };
  single(v) ? launch(0.0f) : launch(0.0);
  return out;
}

// The sums, and the first moments where `v` is defined: factor * conj(v * moment). Undefined where not wanted.
std::pair<Tensor, Tensor> sums(const Tensor& u_given, const Tensor& x_given, const Tensor& v_given, bool wants_plain, bool conjugate, double factor) {
  const c10::cuda::CUDAGuard guard(u_given.device());
  const Tensor u = plain(u_given), x = plain(x_given);
  const Tensor v = v_given.defined() ? plain(v_given) : Tensor();
  const int64_t copies = u.size(-2), rows = groups_of(u) * copies, length = u.size(-1), state = x.size(1);
  const int64_t parts = vandermonde_parts(rows, state, length);
  auto sizes = with_last(u, state);
  sizes.insert(sizes.begin(), parts);
  const auto fresh = [&](bool wanted) { return wanted ? torch::empty(sizes, x.options()) : Tensor(); };
  const Tensor first = fresh(wants_plain), moment = fresh(v.defined());
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    vandermonde_sums<T>(data<T>(u), data<T>(x), data<T>(v), data<T>(first), data<T>(moment), rows, copies, state, length, parts,
                        u.is_complex(), conjugate, factor, stream_of(u));
  };
  single(x) ? launch(0.0f) : launch(0.0);
  const auto joined = [&](const Tensor& of_parts) { return !of_parts.defined() ? Tensor() : parts == 1 ? of_parts[0] : of_parts.sum(0); };
  return {joined(first), joined(moment)};
}

Tensor over_groups(const Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 2) return tensor;
  return tensor.size(0) == 1 ? tensor[0] : tensor.sum(0);
}

// Gradients of `definition` at `inputs`, which can be differentiated again; undefined where an input wants none.
variable_list twice(const std::function<Tensor(const variable_list&)>& definition, const variable_list& inputs, const Tensor& cotangent) {
  variable_list wanted;
  for (const auto& input : inputs)
    if (input.requires_grad()) wanted.push_back(input);
  auto found = autograd::grad({definition(inputs)}, wanted, {cotangent}, true, true);
  variable_list all;
  size_t next = 0;
  for (const auto& input : inputs) all.push_back(input.requires_grad() ? found[next++] : Tensor());
  return all;
}

Tensor powers(const Tensor& x, int64_t length) {
  return torch::exp(x.unsqueeze(-1) * torch::arange(length, x.options().dtype(c10::toRealValueType(x.scalar_type()))));
}

struct Vandermonde : autograd::Function<Vandermonde> {
  static Tensor forward(AutogradContext* context, const Tensor& v, const Tensor& x, int64_t length, bool symmetric) {
    context->save_for_backward({v, x});
    context->saved_data["length"] = length;
    context->saved_data["symmetric"] = symmetric;
    return products(v, x, length, symmetric);
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    const auto saved = context->get_saved_variables();
    const bool symmetric = context->saved_data["symmetric"].toBool();
    const int64_t length = context->saved_data["length"].toInt();
    if (torch::GradMode::is_enabled()) {
      const auto definition = [&](const variable_list& in) {
        const Tensor sum = torch::einsum("...hn,hnl->...hl", {in[0], powers(in[1], length)});
        return symmetric ? 2 * torch::real(sum) : sum;
      };
      auto found = twice(definition, {saved[0], saved[1]}, cotangents[0]);
      return {found[0], found[1], Tensor(), Tensor()};
    }
    const bool by_v = context->needs_input_grad(0), by_x = context->needs_input_grad(1);
    const Tensor drive = symmetric ? cotangents[0] : cotangents[0].conj();
    auto [first, moment] = sums(drive, saved[1], by_x ? saved[0] : Tensor(), by_v, true, symmetric ? 2.0 : 1.0);
    return {first, over_groups(moment), Tensor(), Tensor()};
  }
};

struct Transpose : autograd::Function<Transpose> {
  static Tensor forward(AutogradContext* context, const Tensor& u, const Tensor& x) {
    context->save_for_backward({u, x});
    return sums(u, x, Tensor(), true, false, 1.0).first;
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    const auto saved = context->get_saved_variables();
    const Tensor &u = saved[0], &x = saved[1], &cotangent = cotangents[0];
    if (torch::GradMode::is_enabled()) {
      const auto definition = [](const variable_list& in) {
        return torch::einsum("...hl,hnl->...hn", {in[0].to(in[1].scalar_type()), powers(in[1], in[0].size(-1))});
      };
      return twice(definition, {u, x}, cotangent);
    }
    Tensor by_u, by_x;
    if (context->needs_input_grad(0)) {
      // The conjugate of sum_n conj(cotangent_n) exp(x_n l); half of the symmetric form where u is real.
      by_u = products(cotangent.conj(), x, u.size(-1), !u.is_complex());
      by_u = u.is_complex() ? by_u.conj() : 0.5 * by_u;
    }
    if (context->needs_input_grad(1)) by_x = over_groups(sums(u, x, cotangent.conj(), false, false, 1.0).second);
    return {by_u, by_x};
  }
};

int64_t node_stride(const Tensor& z) { return z.size(0) == 1 ? 0 : z.size(1); }

Tensor cauchy_of(const Tensor& v_given, const Tensor& z_given, const Tensor& w_given, bool symmetric) {
  const c10::cuda::CUDAGuard guard(v_given.device());
  const Tensor v = plain(v_given), z = plain(z_given), w = plain(w_given);
  Tensor out = torch::empty(with_last(v, z.size(1)), v.options());
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    cauchy_products<T>(data<T>(v), data<T>(z), data<T>(w), data<T>(out), groups_of(v), v.size(-2), v.size(-1), z.size(1), node_stride(z), symmetric,
                       stream_of(v));
  };
  single(v) ? launch(0.0f) : launch(0.0);
  return out;
}

struct Cauchy : autograd::Function<Cauchy> {
  static Tensor forward(AutogradContext* context, const Tensor& v, const Tensor& z, const Tensor& w, bool symmetric) {
    context->save_for_backward({v, z, w});
    context->saved_data["symmetric"] = symmetric;
    return cauchy_of(v, z, w, symmetric);
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    const auto saved = context->get_saved_variables();
    const bool symmetric = context->saved_data["symmetric"].toBool();
    if (torch::GradMode::is_enabled()) {
      const auto definition = [&](const variable_list& in) {
        const Tensor nodes = in[1].unsqueeze(-2);
        const Tensor half = (in[0].unsqueeze(-1) / (nodes - in[2].unsqueeze(-1))).sum(-2);
        return symmetric ? half + (in[0].conj().unsqueeze(-1) / (nodes - in[2].conj().unsqueeze(-1))).sum(-2) : half;
      };
      auto found = twice(definition, {saved[0], saved[1], saved[2]}, cotangents[0]);
      return {found[0], found[1], found[2], Tensor()};
    }
    const Tensor v = plain(saved[0]), z = plain(saved[1]), w = plain(saved[2]), g = plain(cotangents[0]);
    const c10::cuda::CUDAGuard guard(v.device());
    const int64_t groups = groups_of(v), copies = v.size(-2), state = v.size(-1), length = z.size(1);
    Tensor by_v, by_z, by_w;
    if (context->needs_input_grad(0) || context->needs_input_grad(2)) {
      const int64_t parts = cauchy_parts(groups * copies, state, length);
      auto sizes = v.sizes().vec();
      sizes.insert(sizes.begin(), parts);
      by_v = torch::empty(sizes, v.options());
      by_w = torch::empty_like(by_v);
      const auto launch = [&](auto zero) {
        using T = decltype(zero);
        cauchy_sums<T>(data<T>(g), data<T>(v), data<T>(z), data<T>(w), data<T>(by_v), data<T>(by_w), groups * copies, copies, state, length,
                       node_stride(z), parts, symmetric, stream_of(v));
      };
      single(v) ? launch(0.0f) : launch(0.0);
      by_v = parts == 1 ? by_v[0] : by_v.sum(0);
      by_w = over_groups(parts == 1 ? by_w[0] : by_w.sum(0));
    }
    if (context->needs_input_grad(1)) {
      by_z = torch::empty({copies, length}, v.options());
      const auto launch = [&](auto zero) {
        using T = decltype(zero);
        cauchy_nodes<T>(data<T>(g), data<T>(v), data<T>(z), data<T>(w), data<T>(by_z), groups, copies, state, length, node_stride(z), symmetric,
                        stream_of(v));
      };
      single(v) ? launch(0.0f) : launch(0.0);
      if (z.size(0) == 1) by_z = by_z.sum(0, true);
    }
    return {by_v, by_z, by_w, Tensor()};
  }
};

bool tracked(std::initializer_list<Tensor> tensors) {
  return torch::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.requires_grad(); });
}

Tensor vandermonde(const Tensor& v, const Tensor& x, int64_t length, bool conj) {
  return tracked({v, x}) ? Vandermonde::apply(v, x, length, conj) : products(v, x, length, conj);
}

Tensor vandermonde_transpose(const Tensor& u, const Tensor& x) {
  return tracked({u, x}) ? Transpose::apply(u, x) : sums(u, x, Tensor(), true, false, 1.0).first;
}

Tensor cauchy(const Tensor& v, const Tensor& z, const Tensor& w, bool conj) {
  return tracked({v, z, w}) ? Cauchy::apply(v, z, w, conj) : cauchy_of(v, z, w, conj);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  namespace py = pybind11;
  module.def("vandermonde", &vandermonde, py::arg("v"), py::arg("x"), py::arg("length"), py::kw_only(), py::arg("conj"));
  module.def("vandermonde_transpose", &vandermonde_transpose, py::arg("u"), py::arg("x"));
  module.def("cauchy", &cauchy, py::arg("v"), py::arg("z"), py::arg("w"), py::kw_only(), py::arg("conj"));
}

}  // namespace pararnn_s4
