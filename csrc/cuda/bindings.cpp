// The CUDA implementation of the operators whose schemas are in ../bindings.cpp.
// Knows torch but no header of CUDA, so that it compiles (and is compiled by tests) where torch has none.
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <vector>

#include "../checks.h"
#include "launch.h"

// torch's C interface for code compiled ahead of time (torch/csrc/inductor/aoti_torch/c/shim.h, there only for builds
// with CUDA): the current stream without CUDA's headers. Returns 0 on success.
extern "C" int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace s2attn {
namespace {

// Half a minute or so: nobody means to wait longer, and a spin cannot be stopped.
constexpr int64_t kMaxSpinCycles = int64_t{1} << 36;

void* current_stream(const at::Tensor& tensor) {
  void* stream = nullptr;
  const int32_t error = aoti_torch_get_current_cuda_stream(tensor.device().index(), &stream);
  TORCH_INTERNAL_ASSERT(error == 0);
  return stream;
}

std::tuple<at::Tensor, at::Tensor> forward_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& quad_weights, const at::Tensor& query_arcs,
                                                const at::Tensor& query_arc_off, const at::Tensor& key_arcs,
                                                const at::Tensor& key_arc_off, int64_t heads) {
  const Storage storage = storage_of(q.scalar_type(), "CUDA");
  const c10::DeviceGuard guard(q.device());
  const ForwardInputs in{q, k, v, quad_weights, {query_arcs, query_arc_off, key_arcs, key_arc_off}, heads};
  const ForwardOutputs out = forward_outputs(in);
  const ForwardParams params = forward_params(in, out.y, out.lse);
  cuda::forward(params, {storage, query_arcs.size(0), key_arcs.size(0)}, current_stream(q));
  return {out.y, out.lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_cuda(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& y,
    const at::Tensor& lse, const at::Tensor& quad_weights, const at::Tensor& query_arcs,
    const at::Tensor& query_arc_off, const at::Tensor& key_arcs, const at::Tensor& key_arc_off, int64_t heads,
    std::array<bool, 3> needs) {
  const Storage storage = storage_of(q.scalar_type(), "CUDA");
  const c10::DeviceGuard guard(q.device());
  const BackwardInputs in{
      {q, k, v, quad_weights, {query_arcs, query_arc_off, key_arcs, key_arc_off}, heads}, dy, y, lse};
  const BackwardOutputs out = backward_outputs(in, needs);
  const BackwardParams params = backward_params(in, out);
  cuda::backward(params, {storage, query_arcs.size(0), key_arcs.size(0)}, current_stream(q));
  return {out.dq, out.dk, out.dv};
}

// A problem whose tensors do not exist: batch 1.
Shape described_shape(at::IntArrayRef out_shape, at::IntArrayRef in_shape, int64_t heads, at::IntArrayRef channels) {
  const auto extent = [](int64_t value) { return static_cast<int32_t>(value); };
  return {1,
          extent(heads),
          extent(channels[0]),
          extent(channels[1]),
          {extent(out_shape[0]), extent(out_shape[1])},
          {extent(in_shape[0]), extent(in_shape[1])}};
}

// Which kernels serve tensors of these shapes on the current GPU, in words; for the record beside a measurement.
// channels: per head, of q and k and of v; arcs: of the query and the key table.
std::string cuda_policy(at::IntArrayRef out_shape, at::IntArrayRef in_shape, at::IntArrayRef arcs, int64_t heads,
                        at::IntArrayRef channels, at::ScalarType dtype, bool backward) {
  const Shape shape = described_shape(out_shape, in_shape, heads, channels);
  const cuda::Call call{storage_of(dtype, "CUDA"), arcs[0], arcs[1]};
  return backward ? cuda::describe_backward(shape, call) : cuda::describe_forward(shape, call);
}

// What may be measured in place of the policy that serves a pass of such tensors, as S2ATTN_CUDA_TILE takes it.
std::vector<std::string> cuda_candidates(at::IntArrayRef out_shape, at::IntArrayRef in_shape, at::IntArrayRef arcs,
                                         int64_t heads, at::IntArrayRef channels, at::ScalarType dtype,
                                         std::string_view pass) {
  const Shape shape = described_shape(out_shape, in_shape, heads, channels);
  return cuda::list_candidates(shape, {storage_of(dtype, "CUDA"), arcs[0], arcs[1]}, pass);
}

// Keeps the current stream busy for that many cycles of the SM clock and writes int64 [4]: clock64 at start and end,
// then %globaltimer at start and end in ns, both 0 where that timer does not advance. For the clock beside a measurement.
void spin(const at::Tensor& stamps, int64_t cycles) {
  TORCH_CHECK(stamps.is_cuda(), "stamps: got device ", stamps.device(), ", expected a CUDA device");
  check_dtype({"stamps", stamps}, at::kLong);
  TORCH_CHECK(stamps.sizes() == at::IntArrayRef({4}), "stamps: got shape ", stamps.sizes(), ", expected [4]");
  TORCH_CHECK(stamps.is_contiguous(), "stamps: got strides ", stamps.strides(), ", expected a contiguous tensor");
  TORCH_CHECK(cycles >= 0 && cycles <= kMaxSpinCycles, "cycles: got ", cycles, ", expected 0 .. ", kMaxSpinCycles);
  const c10::DeviceGuard guard(stamps.device());
  cuda::spin(stamps.mutable_data_ptr<int64_t>(), cycles, current_stream(stamps));
}

}  // namespace
}  // namespace s2attn

TORCH_LIBRARY_FRAGMENT(s2attn, m) {
  m.def(
      "cuda_policy(int[2] out_shape, int[2] in_shape, int[2] arcs, int heads, int[2] channels, ScalarType dtype, "
      "bool backward) -> str",
      &s2attn::cuda_policy);
  m.def(
      "cuda_candidates(int[2] out_shape, int[2] in_shape, int[2] arcs, int heads, int[2] channels, ScalarType dtype, "
      "str kernel_pass) -> str[]",
      &s2attn::cuda_candidates);
  m.def("spin(Tensor(a!) stamps, int cycles) -> ()", &s2attn::spin);
}

TORCH_LIBRARY_IMPL(s2attn, CUDA, m) {
  m.impl("neighborhood_attention", &s2attn::forward_cuda);
  m.impl("neighborhood_attention_backward", &s2attn::backward_cuda);
}
