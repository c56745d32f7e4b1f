// Chooses the policy of a call and hands it to the instance of its storage type.
#include "launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "instances/instances.h"
#include "policy.h"

namespace s2attn::cuda {

namespace {

// Whether vectors of four elements may be loaded from all of these tensors.
bool aligned(Storage storage, std::initializer_list<const void*> tensors) {
  const uintptr_t bytes = storage == Storage::float32 ? 16 : 8;
  for (const void* tensor : tensors)
    if (reinterpret_cast<uintptr_t>(tensor) % bytes != 0) return false;
  return true;
}

template <typename Visit>
void with_storage(Storage storage, const Visit& visit) {
  switch (storage) {
    case Storage::float32: return visit(float{});
    case Storage::float16: return visit(__half{});
    case Storage::bfloat16: return visit(__nv_bfloat16{});
  }
  throw std::invalid_argument("storage: expected float32, float16 or bfloat16");
}

}  // namespace

void forward(const ForwardParams& params, Storage storage, void* stream) {
  const bool vectors = aligned(storage, {params.q, params.k, params.v, params.y});
  const KernelPolicy policy = select_policy({params.shape.channels, params.shape.channels_out, vectors});
  with_storage(storage, [&](auto element) {
    launch_forward<decltype(element)>(policy, params, static_cast<cudaStream_t>(stream));
  });
}

void backward(const BackwardParams& params, Storage storage, void* stream) {
  const bool vectors = aligned(storage, {params.dy, params.q, params.k, params.v, params.dq, params.dk, params.dv});
  const KernelPolicy policy = select_policy({params.shape.channels, params.shape.channels_out, vectors});
  with_storage(storage, [&](auto element) {
    launch_backward<decltype(element)>(policy, params, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace s2attn::cuda
