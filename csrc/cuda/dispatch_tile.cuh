// Launches the tensor core kernels: one block per tile of owners and head.
#pragma once

#include <algorithm>

#include "dispatch.cuh"
#include "kernels/backward_pair.cuh"
#include "kernels/backward_tile.cuh"
#include "kernels/forward_tile.cuh"

namespace s2attn::cuda {

template <typename storage_t>
constexpr Storage kStorage = Storage::float32;
template <>
inline constexpr Storage kStorage<__half> = Storage::float16;
template <>
inline constexpr Storage kStorage<__nv_bfloat16> = Storage::bfloat16;

// A TilePolicy as a type, with the number of warps that share an octet.
template <int kChannels_, int kOctets_, int kGroups_, int kBlocks_, int kRoles_>
struct Tile {
  static constexpr int kChannels = kChannels_;
  static constexpr int kOctets = kOctets_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kRoles = kRoles_;
  static constexpr int kThreads = kOctets * kRoles * kWarp;
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
      return visit(Type<Tile<kTile.channels, kTile.octets, kTile.groups, kTile.blocks,
                             uses_pairs(kStorage<storage_t>, kPass, kTile.channels) ? 2 : 1>>{});
    with_tile<storage_t, kPass, kIndex + 1>(policy, visit);
  }
}

template <typename T>
struct TileLaunch {
  int shared_bytes = 0;                           // of a block, in every launch
  int merged_bytes = kMergedBytes<T::kChannels>;  // of a warp that leaves its sums to another
  bool dependent = false;                         // LaunchConfig
};

template <typename T, typename Params>
void launch_tile(void (*kernel)(Params, TileGrid), const Params& params, const GatherTable& table, Grid owners,
                 const KernelPolicy& policy, cudaStream_t stream, const TileLaunch<T>& how = {}) {
  const TileGrid grid(params.shape, table, owners, T::kOctets, policy.shared_ranks);
  const int merging = grid.shared_ranks > 0 ? (T::kOctets - 1) * T::kRoles * how.merged_bytes : 0;
  launch(kernel, params,
         {grid.blocks, T::kThreads, static_cast<size_t>(std::max(how.shared_bytes, merging)), how.dependent}, stream,
         grid);
}

template <typename storage_t>
void launch_tile_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::forward>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    using Layout = ForwardLayout<T, storage_t>;
    launch_tile<T>(forward_tile<T, storage_t>, params, params.query_table, params.shape.query, policy, stream,
                   {.shared_bytes = Layout::kBytes, .merged_bytes = Layout::kMerged});
  });
}

// Of a block of a backward without pairs: both tensors of its owners.
template <typename T, typename storage_t>
constexpr int parked_bytes = T::kOctets * 2 * BackwardCores<storage_t, T::kChannels>::kParkedBytes;

template <typename storage_t>
void launch_tile_backward_query(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::backward_query>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_tile<T>(backward_query_tile<T, storage_t>, params, params.query_table, params.shape.query, policy, stream,
                   {.shared_bytes = parked_bytes<T, storage_t>});
  });
}

template <typename storage_t>
void launch_tile_backward_key(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream) {
  with_tile<storage_t, Pass::backward_key>(policy, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (T::kRoles == 2)
      launch_tile<T>(backward_key_pair<T, storage_t>, params, params.key_table, params.shape.key, policy, stream,
                     {.shared_bytes = KeyPair<T, storage_t>::kBytes, .dependent = true});
    else
      launch_tile<T>(backward_key_tile<T, storage_t>, params, params.key_table, params.shape.key, policy, stream,
                     {.shared_bytes = parked_bytes<T, storage_t>, .dependent = true});
  });
}

}  // namespace s2attn::cuda
