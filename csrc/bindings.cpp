// The operators of s2attn: their schemas, stated once for every device, and the CPU implementation.
// Fake (shape-only) and autograd implementations are in s2attn/ops/registration.py, CUDA's in cuda/bindings.cpp.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "checks.h"
#include "cpu/huge_pages.h"
#include "cpu/kernels.h"

// neighborhood_attention(q, k, v, quad_weights, query_arcs, query_arc_off, key_arcs, key_arc_off, heads) -> (y, lse)
//
//   y[o] = sum_i w[hi] exp(q[o] . k[i]) v[i] / sum_i w[hi] exp(q[o] . k[i]) over the keys i of query o, per head;
//   lse[o] = log sum_i w[hi] exp(q[o] . k[i]). The scale is already in q. A query without keys: y = 0, lse = -inf.
//
//   q [batch, nlat_out, nlon_out, heads * channels], k [batch, nlat_in, nlon_in, heads * channels],
//   v [batch, nlat_in, nlon_in, heads * channels_out]: one dtype, NHWC, contiguous; heads are packed in the channels.
//   quad_weights float32 [nlat_in]: w, per key, of the latitude hi.
//   query_arcs int32 [count, 3], query_arc_off int32 [nlat_out * residues + 1]: the gather table (problem.h) with
//   queries as owners; key_arcs, key_arc_off: the one with keys as owners, which the forward only checks: it rides
//   along for autograd. Residues and strides follow from the longitudes: downsampling (self-attention included) when
//   nlon_in % nlon_out == 0, with residues 1 and stride pscale for queries, residues pscale and stride 1 for keys;
//   upsampling when nlon_out % nlon_in == 0, the other way round.
//   y like q with v's channels; lse float32 [batch, nlat_out, nlon_out, heads].
//   Dtypes: float32, float16 and bfloat16, with arithmetic in float32, on CPU and CUDA. Extents of 1 .. 2^28, any batch,
//   also 0; tensors of any number of elements.
//   The contents of tables are checked on a CPU. On CUDA they are trusted: to look at them is to wait for the device.
//   Bitwise deterministic on both, whatever the number of threads: torch.use_deterministic_algorithms changes nothing.
//   Under autocast (of the device of q) q, k and v are cast to its dtype first and y comes in that dtype, gradients in
//   those of the inputs; quad_weights, lse and float64 tensors are never cast. Without it mixed dtypes are an error.
//
// neighborhood_attention_backward(dy, q, k, v, y, lse, ..., heads, needs) -> (dq, dk, dv)
//
//   With p = w[hi] exp(q . k - lse) and delta = dy . y per query and head:
//   dq = sum_i p (dy . v - delta) k, dk = sum_o p (dy . v - delta) q, dv = sum_o p dy.
//   dy, y like the forward's y, lse as the forward gave it; the rest as above. needs: which of dq, dk, dv are wanted;
//   the others come back empty, of shape [0]. Both gathers keep their sums to themselves: no atomics, bitwise
//   deterministic, for torch.use_deterministic_algorithms too. Not differentiable itself, and lse has no gradient.
//   On a CPU lse and y need not be exact: p is made to sum to 1 per query, and p (dy . v - delta) to 0.
//   Not touched by autocast: it runs in the dtypes that the forward ran in, and dy must come in that of y.
TORCH_LIBRARY(s2attn, m) {
  m.def(
      "neighborhood_attention(Tensor q, Tensor k, Tensor v, Tensor quad_weights, Tensor query_arcs, "
      "Tensor query_arc_off, Tensor key_arcs, Tensor key_arc_off, int heads) -> (Tensor y, Tensor lse)");
  m.def(
      "neighborhood_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor y, Tensor lse, "
      "Tensor quad_weights, Tensor query_arcs, Tensor query_arc_off, Tensor key_arcs, Tensor key_arc_off, int heads, "
      "bool[3] needs) -> (Tensor dq, Tensor dk, Tensor dv)");
}

namespace s2attn {
namespace {

// Outputs are fresh pages wherever the allocator gives freed ones back to the system, as it does with tens of MiB.
void prefer_huge_pages(std::initializer_list<at::Tensor> outputs) {
  for (const at::Tensor& output : outputs)
    if (output.numel()) cpu::prefer_huge_pages(output.mutable_data_ptr(), static_cast<int64_t>(output.nbytes()));
}

std::tuple<at::Tensor, at::Tensor> forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                               const at::Tensor& quad_weights, const at::Tensor& query_arcs,
                                               const at::Tensor& query_arc_off, const at::Tensor& key_arcs,
                                               const at::Tensor& key_arc_off, int64_t heads) {
  const Storage storage = storage_of(q.scalar_type(), "a CPU");
  const ForwardInputs in{q, k, v, quad_weights, {query_arcs, query_arc_off, key_arcs, key_arc_off}, heads};
  const ForwardOutputs out = forward_outputs(in);
  prefer_huge_pages({out.y, out.lse});
  cpu::forward(forward_params(in, out.y, out.lse), storage, at::get_num_threads());
  return {out.y, out.lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_cpu(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& y,
    const at::Tensor& lse, const at::Tensor& quad_weights, const at::Tensor& query_arcs,
    const at::Tensor& query_arc_off, const at::Tensor& key_arcs, const at::Tensor& key_arc_off, int64_t heads,
    std::array<bool, 3> needs) {
  const Storage storage = storage_of(q.scalar_type(), "a CPU");
  const BackwardInputs in{
      {q, k, v, quad_weights, {query_arcs, query_arc_off, key_arcs, key_arc_off}, heads}, dy, y, lse};
  const BackwardOutputs out = backward_outputs(in, needs);
  prefer_huge_pages({out.dq, out.dk, out.dv, out.workspace});
  cpu::backward(backward_params(in, out), storage, at::get_num_threads());
  return {out.dq, out.dk, out.dv};
}

}  // namespace
}  // namespace s2attn

TORCH_LIBRARY_IMPL(s2attn, CPU, m) {
  m.impl("neighborhood_attention", &s2attn::forward_cpu);
  m.impl("neighborhood_attention_backward", &s2attn::backward_cpu);
}
