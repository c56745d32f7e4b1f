// Chooses the policy of a call and hands it to the instance of its storage type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "dispatch.cuh"
#include "instances/instances.h"
#include "launch.h"
#include "policy.h"

namespace s2attn::cuda {

namespace {

int alignment_of(std::initializer_list<const void*> tensors) {
  uintptr_t alignment = 16;
  for (const void* tensor : tensors)
    while (reinterpret_cast<uintptr_t>(tensor) % alignment != 0) alignment /= 2;
  return static_cast<int>(alignment);
}

int current_architecture() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "asking for the current GPU");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for its architecture");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "asking for its architecture");
  return 10 * major + minor;
}

ProblemFacts facts_of(const Shape& shape, Storage storage, std::initializer_list<const void*> tensors) {
  const auto points = [](Grid grid) { return int64_t{grid.nlat} * grid.nlon; };
  return {shape.channels,
          shape.channels_out,
          storage == Storage::float32 ? 4 : 2,
          alignment_of(tensors),
          std::max(points(shape.query), points(shape.key)),
          int64_t{shape.heads} * std::max(shape.channels, shape.channels_out),
          current_architecture()};
}

// The variant that every call takes, by its name; empty: whichever fits best.
std::string_view requested_variant() {
  const char* variant = std::getenv("S2ATTN_CUDA_VARIANT");
  return variant ? variant : "";
}

template <typename Visit>
void with_storage(Storage storage, const Visit& visit) {
  switch (storage) {
    case Storage::float32:
      return visit(float{});
    case Storage::float16:
      return visit(__half{});
    case Storage::bfloat16:
      return visit(__nv_bfloat16{});
  }
  throw std::invalid_argument("storage: expected float32, float16 or bfloat16");
}

}  // namespace

void forward(const ForwardParams& params, Storage storage, void* stream) {
  const ProblemFacts facts = facts_of(params.shape, storage, {params.q, params.k, params.v, params.y});
  const KernelPolicy policy = select_policy(facts, Pass::forward, requested_variant());
  with_storage(storage, [&](auto element) {
    using storage_t = decltype(element);
    const auto launch =
        policy.variant == Variant::tile ? launch_tile_forward<storage_t> : launch_gather_forward<storage_t>;
    launch(policy, params, static_cast<cudaStream_t>(stream));
  });
}

void backward(const BackwardParams& params, Storage storage, void* stream) {
  const ProblemFacts facts =
      facts_of(params.shape, storage, {params.dy, params.q, params.k, params.v, params.dq, params.dk, params.dv});
  const BackwardPolicies policies{select_policy(facts, Pass::backward_query, requested_variant()),
                                  select_policy(facts, Pass::backward_key, requested_variant())};
  with_storage(storage, [&](auto element) {
    using storage_t = decltype(element);
    if (policies.key.variant == Variant::tile)
      launch_tile_backward<storage_t>(policies, params, static_cast<cudaStream_t>(stream));
    else
      launch_gather_backward<storage_t>(policies.key, params, static_cast<cudaStream_t>(stream));
  });
}

std::string describe_forward(const Shape& shape, Storage storage) {
  return to_string(select_policy(facts_of(shape, storage, {}), Pass::forward, requested_variant()));
}

std::string describe_backward(const Shape& shape, Storage storage) {
  const ProblemFacts facts = facts_of(shape, storage, {});
  return to_string(select_policy(facts, Pass::backward_query, requested_variant())) + " + " +
         to_string(select_policy(facts, Pass::backward_key, requested_variant()));
}

}  // namespace s2attn::cuda
