// Launches the tensor core kernels: one block per tile of owners and head.
#pragma once

#include "device/owners.cuh"
#include "dispatch.cuh"
#include "kernels/backward_statistics.cuh"
#include "kernels/backward_tile.cuh"
#include "kernels/forward_tile.cuh"

namespace s2attn::cuda {

// Row kIndex of kTilePolicies as a type.
template <int kIndex>
struct Tile {
  static constexpr TilePolicy kPolicy = kTilePolicies[kIndex].policy;
  static constexpr int kChannels = kPolicy.channels;
  static constexpr int kGroups = kPolicy.groups;
  static constexpr int kBlocks = kPolicy.blocks;
  using Layout = TileLayout<kPolicy.octets, kPolicy.stage_rows, kPolicy.stages>;

  template <typename storage_t, bool kStatistics>
  static LaunchSize size(const Shape& shape, const GatherTable& table, Grid owners) {
    return {shape.batch * shape.heads * tiles_per_head<Layout>(table, owners), Layout::kThreads,
            StageMemory<Layout, storage_t, kChannels, kStatistics>::kBytes};
  }
};

// Calls visit(Type<Tile>{}) for the tile of a compiled policy.
template <typename storage_t, Pass kPass, int kIndex = 0, typename Visit>
void with_tile(const KernelPolicy& policy, const Visit& visit) {
  if constexpr (kIndex == kTilePolicyCount) {
    throw_not_compiled(policy);
  } else {
    if constexpr (kTilePolicies[kIndex].element_bytes == sizeof(storage_t) && kTilePolicies[kIndex].pass == kPass)
      if (policy.tile == kTilePolicies[kIndex].policy) return visit(Type<Tile<kIndex>>{});
    with_tile<storage_t, kPass, kIndex + 1>(policy, visit);
  }
}

template <typename storage_t>
void launch_tile_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::forward>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(forward_tile<T, storage_t>, params,
           T::template size<storage_t, false>(params.shape, params.query_table, params.shape.query), stream);
  });
}

template <typename storage_t>
void launch_tile_backward(const BackwardPolicies& policies, const BackwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  const int64_t blocks = shape.batch * shape.query.nlat * shape.heads * blocks_per_row(shape.query, kWarpsPerBlock);
  launch(backward_statistics<storage_t>, params, {blocks, kBlockThreads, 0}, stream);
  if (params.dq)
    with_tile<storage_t, Pass::backward_query>(policies.query, [&](auto type) {
      using T = typename decltype(type)::type;
      launch(backward_query_tile<T, storage_t>, params,
             T::template size<storage_t, false>(shape, params.query_table, shape.query), stream);
    });
  if (params.dk || params.dv)
    with_tile<storage_t, Pass::backward_key>(policies.key, [&](auto type) {
      using T = typename decltype(type)::type;
      launch(backward_key_tile<T, storage_t>, params,
             T::template size<storage_t, true>(shape, params.key_table, shape.key), stream);
    });
}

}  // namespace s2attn::cuda
