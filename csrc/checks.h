// Turns the tensors of a call into the params of a kernel, refusing what the contract in bindings.cpp does not cover.
// Besides the two bindings files the only place that knows torch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <tuple>

#include "problem.h"

namespace s2attn {

struct Argument {
  const char* name;
  const at::Tensor& tensor;
};

// The four table tensors of a call, as they stand in the schema.
struct TableTensors {
  const at::Tensor& query_arcs;
  const at::Tensor& query_arc_off;
  const at::Tensor& key_arcs;
  const at::Tensor& key_arc_off;
};

struct ForwardInputs {
  const at::Tensor& q;
  const at::Tensor& k;
  const at::Tensor& v;
  const at::Tensor& quad_weights;
  TableTensors tables;
  int64_t heads;
};

struct BackwardInputs {
  ForwardInputs forward;
  const at::Tensor& dy;
  const at::Tensor& y;
  const at::Tensor& lse;
};

// Of latitudes, longitudes and channels. Kernels add up to four of them (two channel counts, twice; a longitude and a
// shift) in 32 bits; products of extents, so every offset into a tensor, are 64 bits wide.
constexpr int64_t kMaxExtent = int64_t{1} << 28;

// device: where the kernels run, in the words of an error.
inline Storage storage_of(at::ScalarType dtype, const char* device) {
  switch (dtype) {
    case at::kFloat: return Storage::float32;
    case at::kHalf: return Storage::float16;
    case at::kBFloat16: return Storage::bfloat16;
    default: TORCH_CHECK(false, "q: got dtype ", dtype, ", expected float32, float16 or bfloat16 on ", device);
  }
}

inline void check_storage(const Argument& argument, const at::Tensor& q) {
  TORCH_CHECK(argument.tensor.device() == q.device(), argument.name, ": got device ", argument.tensor.device(),
              ", expected that of q, ", q.device());
  TORCH_CHECK(argument.tensor.is_contiguous(), argument.name, ": got strides ", argument.tensor.strides(),
              " for the shape ", argument.tensor.sizes(), ", expected a contiguous tensor");
}

inline void check_dtype(const Argument& argument, at::ScalarType expected) {
  TORCH_CHECK(argument.tensor.scalar_type() == expected, argument.name, ": got dtype ", argument.tensor.scalar_type(),
              ", expected ", expected);
}

inline void check_shape(const Argument& argument, at::IntArrayRef expected, const at::Tensor& q) {
  TORCH_CHECK(argument.tensor.sizes() == expected, argument.name, ": got shape ", argument.tensor.sizes(),
              ", expected ", expected, " for q of shape ", q.sizes());
}

inline void check_nhwc(const Argument& argument, int64_t heads) {
  TORCH_CHECK(argument.tensor.dim() == 4, argument.name, ": got shape ", argument.tensor.sizes(),
              ", expected [batch, nlat, nlon, channels]");
  for (int64_t axis = 1; axis < 4; ++axis) {
    const int64_t extent = argument.tensor.size(axis);
    TORCH_CHECK(extent > 0 && extent <= kMaxExtent, argument.name, ": got shape ", argument.tensor.sizes(),
                ", expected 1 .. 2^28 in dimension ", axis);
  }
  TORCH_CHECK(argument.tensor.size(3) % heads == 0, argument.name, ": got ", argument.tensor.size(3),
              " channels, expected a multiple of the number of heads, ", heads);
}

inline Shape checked_shape(const ForwardInputs& in) {
  TORCH_CHECK(in.heads > 0, "heads: got ", in.heads, ", expected a positive number");
  check_nhwc({"q", in.q}, in.heads);
  check_nhwc({"k", in.k}, in.heads);
  check_nhwc({"v", in.v}, in.heads);
  check_shape({"k", in.k}, {in.q.size(0), in.k.size(1), in.k.size(2), in.q.size(3)}, in.q);
  check_shape({"v", in.v}, {in.k.size(0), in.k.size(1), in.k.size(2), in.v.size(3)}, in.q);
  const auto extent = [](int64_t value) { return static_cast<int32_t>(value); };
  const Shape shape{in.q.size(0),
                    extent(in.heads),
                    extent(in.q.size(3) / in.heads),
                    extent(in.v.size(3) / in.heads),
                    {extent(in.q.size(1)), extent(in.q.size(2))},
                    {extent(in.k.size(1)), extent(in.k.size(2))}};
  TORCH_CHECK(shape.key.nlon % shape.query.nlon == 0 || shape.query.nlon % shape.key.nlon == 0, "q: got ",
              shape.query.nlon, " longitudes, expected a divisor or a multiple of the ", shape.key.nlon,
              " longitudes of k");
  check_shape({"quad_weights", in.quad_weights}, {shape.key.nlat}, in.q);
  check_dtype({"quad_weights", in.quad_weights}, at::kFloat);
  check_dtype({"k", in.k}, in.q.scalar_type());
  check_dtype({"v", in.v}, in.q.scalar_type());
  for (const Argument& argument : std::initializer_list<Argument>{
           {"q", in.q}, {"k", in.k}, {"v", in.v}, {"quad_weights", in.quad_weights}})
    check_storage(argument, in.q);
  return shape;
}

// Contents of a table that the host can read; a kernel would follow a wrong entry out of the tensors.
inline void check_arcs(const char* name, const GatherTable& table, int64_t rows, int64_t count, Grid partners) {
  TORCH_CHECK(table.arc_off[0] == 0 && table.arc_off[rows] == count, name, "_arc_off: got first and last entries ",
              table.arc_off[0], " and ", table.arc_off[rows], ", expected 0 and ", count, ", the number of arcs");
  for (int64_t row = 0; row < rows; ++row)
    TORCH_CHECK(table.arc_off[row] <= table.arc_off[row + 1], name, "_arc_off: got a decrease after row ", row,
                ", expected ascending offsets");
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* arc = table.arcs + i * kArcFields;
    TORCH_CHECK(arc[0] >= 0 && arc[0] < partners.nlat && arc[1] >= 0 && arc[1] < partners.nlon && arc[2] > 0 &&
                    arc[2] <= partners.nlon,
                name, "_arcs: got (", arc[0], ", ", arc[1], ", ", arc[2], ") in row ", i, ", expected latitude < ",
                partners.nlat, ", first longitude < ", partners.nlon, " and length 1 .. ", partners.nlon);
  }
}

// One gather table of a call, as tensors and as the grids decide it.
struct TableArguments {
  const char* name;
  Argument arcs;
  Argument arc_off;
  Grid owners;
  Grid partners;
};

inline GatherTable checked_table(const TableArguments& in, const at::Tensor& q) {
  const at::Tensor &arcs = in.arcs.tensor, &arc_off = in.arc_off.tensor;
  const bool finer_owners = in.owners.nlon > in.partners.nlon;
  const int32_t residues = finer_owners ? in.owners.nlon / in.partners.nlon : 1;
  const int32_t stride = finer_owners ? 1 : in.partners.nlon / in.owners.nlon;
  const int64_t rows = int64_t{in.owners.nlat} * residues;
  TORCH_CHECK(arcs.dim() == 2 && arcs.size(1) == kArcFields, in.arcs.name, ": got shape ", arcs.sizes(),
              ", expected [count, ", kArcFields, "]");
  TORCH_CHECK(arc_off.dim() == 1 && arc_off.size(0) == rows + 1, in.arc_off.name, ": got shape ", arc_off.sizes(),
              ", expected [", rows + 1, "], one more than the ", rows, " rows of the ", in.name, " table");
  for (const Argument& argument : {in.arcs, in.arc_off}) {
    check_dtype(argument, at::kInt);
    check_storage(argument, q);
  }
  const GatherTable table{arcs.const_data_ptr<int32_t>(), arc_off.const_data_ptr<int32_t>(), residues, stride};
  if (q.is_cpu()) check_arcs(in.name, table, rows, arcs.size(0), in.partners);
  return table;
}

inline GatherTable checked_query_table(const Shape& shape, const ForwardInputs& in) {
  return checked_table({"query",
                        {"query_arcs", in.tables.query_arcs},
                        {"query_arc_off", in.tables.query_arc_off},
                        shape.query,
                        shape.key},
                       in.q);
}

inline GatherTable checked_key_table(const Shape& shape, const ForwardInputs& in) {
  return checked_table({"key",
                        {"key_arcs", in.tables.key_arcs},
                        {"key_arc_off", in.tables.key_arc_off},
                        shape.key,
                        shape.query},
                       in.q);
}

inline ForwardParams forward_params(const ForwardInputs& in, const at::Tensor& y, const at::Tensor& lse) {
  const Shape shape = checked_shape(in);
  checked_key_table(shape, in);  // not walked here, but autograd will hand it to the backward
  TORCH_INTERNAL_ASSERT(y.is_contiguous() && lse.is_contiguous());
  return {shape,
          checked_query_table(shape, in),
          in.q.const_data_ptr(),
          in.k.const_data_ptr(),
          in.v.const_data_ptr(),
          in.quad_weights.const_data_ptr<float>(),
          y.mutable_data_ptr(),
          lse.mutable_data_ptr<float>()};
}

struct ForwardOutputs {
  at::Tensor y;
  at::Tensor lse;
};

inline ForwardOutputs forward_outputs(const ForwardInputs& in) {
  const Shape shape = checked_shape(in);
  const auto options = in.q.options();
  return {at::empty({shape.batch, shape.query.nlat, shape.query.nlon, in.v.size(3)}, options),
          at::empty({shape.batch, shape.query.nlat, shape.query.nlon, in.heads}, options.dtype(at::kFloat))};
}

struct BackwardOutputs {
  at::Tensor dq;  // empty where not asked for
  at::Tensor dk;
  at::Tensor dv;
  at::Tensor workspace;
};

inline BackwardOutputs backward_outputs(const BackwardInputs& in, std::array<bool, 3> needs) {
  const auto gradient = [&](const at::Tensor& like, bool needed) {
    return needed ? at::empty(like.sizes(), like.options()) : at::empty({0}, like.options());
  };
  return {gradient(in.forward.q, needs[0]), gradient(in.forward.k, needs[1]), gradient(in.forward.v, needs[2]),
          at::empty({kStatistics, in.lse.numel()}, in.lse.options())};
}

inline BackwardParams backward_params(const BackwardInputs& in, const BackwardOutputs& out) {
  const Shape shape = checked_shape(in.forward);
  const at::Tensor& q = in.forward.q;
  const std::array<int64_t, 4> y_shape{shape.batch, shape.query.nlat, shape.query.nlon, in.forward.v.size(3)};
  const std::array<int64_t, 4> lse_shape{shape.batch, shape.query.nlat, shape.query.nlon, in.forward.heads};
  check_shape({"dy", in.dy}, y_shape, q);
  check_shape({"y", in.y}, y_shape, q);
  check_shape({"lse", in.lse}, lse_shape, q);
  check_dtype({"dy", in.dy}, q.scalar_type());
  check_dtype({"y", in.y}, q.scalar_type());
  check_dtype({"lse", in.lse}, at::kFloat);
  for (const Argument& argument : std::initializer_list<Argument>{{"dy", in.dy}, {"y", in.y}, {"lse", in.lse}})
    check_storage(argument, q);
  const auto target = [](const at::Tensor& gradient) {
    TORCH_INTERNAL_ASSERT(gradient.is_contiguous());
    return gradient.numel() ? gradient.mutable_data_ptr() : nullptr;
  };
  return {shape,
          checked_query_table(shape, in.forward),
          checked_key_table(shape, in.forward),
          in.dy.const_data_ptr(),
          q.const_data_ptr(),
          in.forward.k.const_data_ptr(),
          in.forward.v.const_data_ptr(),
          in.y.const_data_ptr(),
          in.lse.const_data_ptr<float>(),
          in.forward.quad_weights.const_data_ptr<float>(),
          out.workspace.mutable_data_ptr<float>(),
          target(out.dq),
          target(out.dk),
          target(out.dv)};
}

}  // namespace s2attn
