// Launches the portable kernels: one warp per owner and head.
#pragma once

#include "device/owners.cuh"
#include "device/rows.cuh"
#include "dispatch.cuh"
#include "kernels/backward_gather.cuh"
#include "kernels/backward_statistics.cuh"
#include "kernels/forward_gather.cuh"
#include "kernels/forward_two_pass.cuh"

namespace s2attn::cuda {

// As many warps per block as the shared memory of a block allows.
inline LaunchConfig warp_per_owner(const Shape& shape, Grid owners, int floats_per_warp) {
  const size_t bytes_per_warp = floats_per_warp * sizeof(float);
  uint32_t warps = kWarpsPerBlock;
  while (warps > 1 && warps * bytes_per_warp > kDefaultSharedBytes) warps /= 2;
  const size_t bytes = warps * bytes_per_warp;
  if (bytes > kDefaultSharedBytes)
    if (const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); bytes > static_cast<size_t>(most))
      throw std::invalid_argument("channels per head: got " + std::to_string(bytes) +
                                  " bytes of sums per point, expected at most " + std::to_string(most) +
                                  ", the shared memory of a block of this GPU");
  return {shape.batch * owners.nlat * shape.heads * blocks_per_row(owners, warps), warps * kWarp, bytes};
}

// Calls visit(Type<Row>{}) for the row of a compiled policy.
template <typename Visit>
void with_row(const KernelPolicy& policy, const Visit& visit) {
  const GatherPolicy& gather = policy.gather;
  if (gather == GatherPolicy{4, 4, 1}) return visit(Type<RegisterRow<4, 4, 1>>{});
  if (gather == GatherPolicy{4, 8, 1}) return visit(Type<RegisterRow<4, 8, 1>>{});
  if (gather == GatherPolicy{4, 16, 1}) return visit(Type<RegisterRow<4, 16, 1>>{});
  if (gather == GatherPolicy{4, 32, 1}) return visit(Type<RegisterRow<4, 32, 1>>{});
  if (gather == GatherPolicy{1, 8, 1}) return visit(Type<RegisterRow<1, 8, 1>>{});
  if (gather == GatherPolicy{1, 32, 2}) return visit(Type<RegisterRow<1, 32, 2>>{});
  if (gather == kSharedMemoryPolicy) return visit(Type<SharedRow>{});
  throw_not_compiled(policy);
}

template <typename storage_t>
void launch_gather_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  const int floats = policy.gather.in_shared_memory() ? forward_floats_per_warp(shape) : 0;
  const LaunchConfig config = warp_per_owner(shape, shape.query, floats);
  with_row(policy, [&](auto row) {
    using Row = typename decltype(row)::type;
    if (policy.variant == Variant::gather) return launch(forward_gather<storage_t, Row>, params, config, stream);
    launch(forward_maximum<storage_t, Row>, params, config, stream);
    launch(forward_accumulate<storage_t, Row>, params, config, stream);
  });
}

template <typename storage_t>
void launch_backward_statistics(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  if (policy.variant != Variant::two_pass) {
    constexpr int kVector = 16 / sizeof(storage_t);
    const auto addresses = reinterpret_cast<uintptr_t>(params.dy) | reinterpret_cast<uintptr_t>(params.y);
    const bool packets = addresses % 16 == 0 && shape.channels_out % kVector == 0;
    const int64_t rows = shape.batch * shape.query.nlat * shape.query.nlon * shape.heads;
    const LaunchConfig config{(rows * kDeltaLanes + kBlockThreads - 1) / kBlockThreads, kBlockThreads, 0};
    return launch(packets ? backward_statistics<storage_t, kVector> : backward_statistics<storage_t, 1>, params, config,
                  stream);
  }
  with_row(policy, [&](auto row) {
    using Row = typename decltype(row)::type;
    const int floats = policy.gather.in_shared_memory() ? backward_floats_per_warp(shape) : 0;
    launch(backward_statistics_two_pass<storage_t, Row>, params, warp_per_owner(shape, shape.query, floats), stream);
  });
}

template <typename storage_t>
void launch_gather_backward_query(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  with_row(policy, [&](auto row) {
    using Row = typename decltype(row)::type;
    const int floats = policy.gather.in_shared_memory() ? backward_floats_per_warp(shape) : 0;
    launch(backward_query_gather<storage_t, Row>, params, warp_per_owner(shape, shape.query, floats), stream);
  });
}

template <typename storage_t>
void launch_gather_backward_key(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  with_row(policy, [&](auto row) {
    using Row = typename decltype(row)::type;
    const int floats = policy.gather.in_shared_memory() ? backward_floats_per_warp(shape) : 0;
    launch(backward_key_gather<storage_t, Row>, params, warp_per_owner(shape, shape.key, floats), stream);
  });
}

}  // namespace s2attn::cuda
