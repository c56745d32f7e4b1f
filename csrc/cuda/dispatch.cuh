// From a policy to the kernel compiled for it, per storage type. instances/ compiles one storage type per file.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "instances/instances.h"
#include "kernels/backward_gather.cuh"
#include "kernels/forward_gather.cuh"
#include "policy.h"

namespace s2attn::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

struct LaunchSize {
  Grid owners;
  int floats_per_warp;  // shared memory
};

// One warp per owner and head; as many warps per block as the shared memory of a block allows.
template <typename Params>
void launch(void (*kernel)(Params), const Params& params, const LaunchSize& size, cudaStream_t stream) {
  constexpr size_t kBlockMemory = 227 * 1024;   // the most a block may ask for on sm_90
  constexpr size_t kDefaultMemory = 48 * 1024;  // what it has without asking
  const size_t bytes_per_warp = size.floats_per_warp * sizeof(float);
  uint32_t warps = kWarpsPerBlock;
  while (warps > 1 && warps * bytes_per_warp > kDefaultMemory) warps /= 2;
  const size_t bytes = warps * bytes_per_warp;
  if (bytes > kBlockMemory)
    throw std::invalid_argument("channels per head: got " + std::to_string(bytes) +
                                " bytes of sums per point, expected at most " + std::to_string(kBlockMemory));
  if (bytes > kDefaultMemory)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "asking for shared memory");
  const int64_t rows = params.shape.batch * size.owners.nlat * params.shape.heads;
  const int64_t blocks = rows * blocks_per_row(size.owners, warps);
  if (blocks == 0) return;
  if (blocks > INT32_MAX)
    throw std::invalid_argument("points times heads: got " + std::to_string(blocks) + " blocks, expected below 2^31");
  kernel<<<static_cast<uint32_t>(blocks), warps * kWarp, bytes, stream>>>(params);
  check(cudaGetLastError(), "launching a kernel of s2attn");
}

template <typename Row>
struct RowType {
  using type = Row;
};

// Calls visit(RowType<Row>{}) for the row of a compiled policy.
template <typename Visit>
void with_row(const KernelPolicy& policy, const Visit& visit) {
  if (policy == KernelPolicy{4, 4, 1}) return visit(RowType<RegisterRow<4, 4, 1>>{});
  if (policy == KernelPolicy{4, 8, 1}) return visit(RowType<RegisterRow<4, 8, 1>>{});
  if (policy == KernelPolicy{4, 16, 1}) return visit(RowType<RegisterRow<4, 16, 1>>{});
  if (policy == KernelPolicy{4, 32, 1}) return visit(RowType<RegisterRow<4, 32, 1>>{});
  if (policy == KernelPolicy{1, 8, 1}) return visit(RowType<RegisterRow<1, 8, 1>>{});
  if (policy == KernelPolicy{1, 32, 2}) return visit(RowType<RegisterRow<1, 32, 2>>{});
  if (policy == kSharedMemoryPolicy) return visit(RowType<SharedRow>{});
  std::string compiled;
  for (const KernelPolicy& known : kPolicies) compiled.append(" ").append(to_string(known));
  throw std::invalid_argument("policy: got " + to_string(policy) + ", expected one of" + compiled);
}

template <typename storage_t>
void launch_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  const int floats = policy.in_shared_memory() ? forward_floats_per_warp(shape) : 0;
  with_row(policy, [&](auto row) {
    using Row = typename decltype(row)::type;
    launch(forward_gather<storage_t, Row>, params, {shape.query, floats}, stream);
  });
}

template <typename storage_t>
void launch_backward(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  const int floats = policy.in_shared_memory() ? backward_floats_per_warp(shape) : 0;
  launch(backward_delta<storage_t>, params, {shape.query, 0}, stream);
  with_row(policy, [&](auto row) {
    using Row = typename decltype(row)::type;
    if (params.dq) launch(backward_query_gather<storage_t, Row>, params, {shape.query, floats}, stream);
    if (params.dk || params.dv) launch(backward_key_gather<storage_t, Row>, params, {shape.key, floats}, stream);
  });
}

}  // namespace s2attn::cuda
