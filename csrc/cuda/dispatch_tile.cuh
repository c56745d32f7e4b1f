// Launches the tensor core kernels: one block per tile of owners and head.
#pragma once

#include <algorithm>

#include "dispatch.cuh"
#include "kernels/backward_tile.cuh"
#include "kernels/forward_tile.cuh"

namespace s2attn::cuda {

template <typename storage_t>
constexpr Storage kStorage = Storage::float32;
template <>
inline constexpr Storage kStorage<__half> = Storage::float16;
template <>
inline constexpr Storage kStorage<__nv_bfloat16> = Storage::bfloat16;

// A TilePolicy as a type.
template <int kChannels_, int kOctets, int kStageRows, int kStages, int kGroups_, int kBlocks_>
struct Tile {
  static constexpr int kChannels = kChannels_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kBlocks = kBlocks_;
  using Layout = TileLayout<kOctets, kStageRows, kStages>;

  template <typename storage_t, Pass kPass>
  static LaunchSize size(const Shape& shape, const GatherTable& table, Grid owners, uint32_t sharing_ranks) {
    constexpr int kBytes = StageMemory<Layout, storage_t, kChannels, kPass == Pass::backward_key>::kBytes;
    static_assert(kBytes == shared_bytes({kChannels, kOctets, kStageRows, kStages, kGroups, kBlocks},
                                         kStorage<storage_t>, kPass));
    static_assert((kOctets - 1) * kMergedBytes<kChannels> <= kBytes);
    const int64_t rows = tiles_down(table, owners) - sharing_ranks;
    return {sharing_blocks(shape, table, owners, sharing_ranks) +
                shape.batch * shape.heads * rows * tiles_across(table, owners, kOctet * kOctets),
            Layout::kThreads, kBytes};
  }
};

// Calls visit(Type<Tile>{}) for the tile of a compiled policy.
template <typename storage_t, Pass kPass, int kIndex = 0, typename Visit>
void with_tile(const KernelPolicy& policy, const Visit& visit) {
  constexpr TileList kCompiled = compiled_tiles(kStorage<storage_t>, kPass);
  if constexpr (kIndex == kCompiled.count) {
    throw_not_compiled(policy);
  } else {
    constexpr TilePolicy kTile = kCompiled.tiles[kIndex];
    if (policy.tile == kTile)
      return visit(
          Type<Tile<kTile.channels, kTile.octets, kTile.stage_rows, kTile.stages, kTile.groups, kTile.blocks>>{});
    with_tile<storage_t, kPass, kIndex + 1>(policy, visit);
  }
}

// poles: whether the tile rows next to both poles share octets.
template <typename storage_t, Pass kPass, typename T, typename Params>
void launch_tile(void (*kernel)(Params, uint32_t), const Params& params, const GatherTable& table, Grid owners,
                 bool poles, cudaStream_t stream) {
  const uint32_t ranks = poles ? std::min<uint32_t>(2, tiles_down(table, owners)) : 0;
  launch(kernel, params, T::template size<storage_t, kPass>(params.shape, table, owners, ranks), stream, ranks);
}

template <typename storage_t>
void launch_tile_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::forward>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_tile<storage_t, Pass::forward, T>(forward_tile<T, storage_t>, params, params.query_table, params.shape.query,
                                             policy.shares_poles, stream);
  });
}

template <typename storage_t>
void launch_tile_backward_query(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::backward_query>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_tile<storage_t, Pass::backward_query, T>(backward_query_tile<T, storage_t>, params, params.query_table,
                                                    params.shape.query, policy.shares_poles, stream);
  });
}

template <typename storage_t>
void launch_tile_backward_key(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::backward_key>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_tile<storage_t, Pass::backward_key, T>(backward_key_tile<T, storage_t>, params, params.key_table,
                                                  params.shape.key, policy.shares_poles, stream);
  });
}

}  // namespace s2attn::cuda
