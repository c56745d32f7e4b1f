// Launches the tensor core kernels: one block per tile of owners and head.
#pragma once

#include "device/owners.cuh"
#include "dispatch.cuh"
#include "kernels/backward_statistics.cuh"
#include "kernels/backward_tile.cuh"
#include "kernels/forward_tile.cuh"

namespace s2attn::cuda {

template <typename storage_t, int kIndex>
struct Tile {
  static constexpr TilePolicy kPolicy = sizeof(storage_t) == 2 ? kTilePolicies16[kIndex] : kTilePolicies32[kIndex];
  static constexpr int kChannels = kPolicy.channels;
  using Layout = TileLayout<kPolicy.pairs, kPolicy.octets, kPolicy.stage_rows, kPolicy.stages>;
  template <bool kStatistics>
  using Memory = StageMemory<Layout, storage_t, kChannels, kStatistics>;

  static int64_t blocks(const Shape& shape, const GatherTable& table, Grid owners) {
    return shape.batch * shape.heads * tiles_per_head<Layout>(table, owners);
  }
};

// Calls visit(Type<Tile>{}) for the tile of a compiled policy.
template <typename storage_t, typename Visit>
void with_tile(const KernelPolicy& policy, const Visit& visit) {
  if (policy.tile == Tile<storage_t, 0>::kPolicy) return visit(Type<Tile<storage_t, 0>>{});
  if (policy.tile == Tile<storage_t, 1>::kPolicy) return visit(Type<Tile<storage_t, 1>>{});
  throw_not_compiled(policy);
}

template <typename storage_t>
void launch_tile_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream) {
  with_tile<storage_t>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    using Layout = typename T::Layout;
    launch(forward_tile<Layout, storage_t, T::kChannels>, params,
           {T::blocks(params.shape, params.query_table, params.shape.query), Layout::kThreads,
            T::template Memory<false>::kBytes},
           stream);
  });
}

template <typename storage_t>
void launch_tile_backward(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  const Shape& shape = params.shape;
  const int64_t blocks = shape.batch * shape.query.nlat * shape.heads * blocks_per_row(shape.query, kWarpsPerBlock);
  launch(backward_statistics<storage_t>, params, {blocks, kBlockThreads, 0}, stream);
  with_tile<storage_t>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    using Layout = typename T::Layout;
    if (params.dq)
      launch(backward_query_tile<Layout, storage_t, T::kChannels>, params,
             {T::blocks(shape, params.query_table, shape.query), Layout::kThreads, T::template Memory<false>::kBytes},
             stream);
    if (params.dk || params.dv)
      launch(backward_key_tile<Layout, storage_t, T::kChannels>, params,
             {T::blocks(shape, params.key_table, shape.key), Layout::kThreads, T::template Memory<true>::kBytes},
             stream);
  });
}

}  // namespace s2attn::cuda
