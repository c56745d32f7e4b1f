// Which kernels serve a call, and how they are laid out: a value. tunings.h says where each is used, select.h chooses.
// Plain C++, so that the choice is tested without a GPU.
#pragma once

#include <algorithm>
#include <string>

#include "../problem.h"

namespace s2attn::cuda {

// gather:   portable. One warp per owner, partners in groups, one update of an online softmax per group.
// two_pass: portable. As gather, but the maximum of the scores is found in a pass of its own, before the sums.
// tile:     tensor cores (sm_80 and later). 16 owners per warp, whose partners are read once for all of them.
enum class Variant { gather, two_pass, tile };

inline constexpr Variant kVariants[] = {Variant::gather, Variant::two_pass, Variant::tile};

// What a kernel computes; each of them is laid out for itself.
enum class Pass { forward, backward_query, backward_key };

inline constexpr Pass kPasses[] = {Pass::forward, Pass::backward_query, Pass::backward_key};

constexpr int element_bytes(Storage storage) { return storage == Storage::float32 ? 4 : 2; }

// gather and two_pass: a warp splits into 32 / group groups of lanes; each group takes every 32 / group-th partner. A
// lane keeps chunks times vector channels of the owner in registers, loaded vector at a time. chunks = 0: the owner's
// channels lie in shared memory instead, any number of them.
struct GatherPolicy {
  int vector;
  int group;
  int chunks;

  constexpr bool operator==(const GatherPolicy&) const = default;
  constexpr int capacity() const { return vector * group * chunks; }
  constexpr bool in_shared_memory() const { return chunks == 0; }
};

// tile: a warp, or a pair of them, per octet of columns (device/windows.cuh). All zero: no tile.
struct TilePolicy {
  int channels;  // room for so many of q and k, and of v
  int octets;    // of a block
  int groups;    // of 8 partners that a warp multiplies at a time
  int blocks;    // per multiprocessor, for which registers are allotted

  constexpr bool operator==(const TilePolicy&) const = default;
  constexpr bool exists() const { return channels > 0; }
};

// Whether two warps share the work of an octet (kernels/forward_tile.cuh, backward_pair.cuh).
constexpr bool uses_pairs(Storage storage, Pass pass, int channels) {
  const bool wide = storage == Storage::float32;
  if (pass == Pass::backward_key) return channels >= (wide ? 64 : 128);
  return pass == Pass::forward && wide && channels >= 128;
}

constexpr int threads_of(const TilePolicy& tile, Storage storage, Pass pass) {
  return 32 * tile.octets * (uses_pairs(storage, pass, tile.channels) ? 2 : 1);
}

// Of a block, dynamic, at most: what its warps park and its pairs exchange, or the sums of warps that share an octet.
constexpr int shared_bytes(const TilePolicy& tile, Storage storage, Pass pass) {
  const int warps = threads_of(tile, storage, pass) / 32;
  if (uses_pairs(storage, pass, tile.channels)) return warps * (64 * tile.channels + 1024 * tile.groups);
  const int parked = storage == Storage::float32 ? warps * 128 * tile.channels : 0;
  return std::max(parked, (warps - 1) * (64 * tile.channels + 512));
}

// Whether the tile kernels can be compiled for a policy.
constexpr bool can_be_compiled(const TilePolicy& tile, Storage storage, Pass pass) {
  constexpr int kBarriers = 15;  // one per pair, besides that of the block
  const int most_groups = storage == Storage::float32 && pass != Pass::forward ? 2 : 4;  // SplitCores::accumulate
  const bool pairs = uses_pairs(storage, pass, tile.channels);
  return tile.channels > 0 && tile.channels % (pairs ? 64 : 32) == 0 && tile.octets > 0 &&
         (!pairs || tile.octets <= kBarriers) && tile.groups >= 1 && tile.groups <= most_groups && tile.blocks >= 1 &&
         tile.blocks * threads_of(tile, storage, pass) <= 1024;  // 64 registers and more
}

struct KernelPolicy {
  Variant variant;
  GatherPolicy gather;   // of gather and two_pass
  TilePolicy tile;       // of tile
  bool tuned;            // measured on this architecture, and found to be the fastest
  int shared_ranks = 0;  // tile rows, from both poles, whose warps share an octet (device/windows.cuh)

  constexpr bool operator==(const KernelPolicy&) const = default;
};

inline std::string to_string(Variant variant) {
  return variant == Variant::gather ? "gather" : variant == Variant::two_pass ? "two_pass" : "tile";
}

inline std::string to_string(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward_query ? "backward_query" : "backward_key";
}

// The numbers of a tile, as S2ATTN_CUDA_TILE takes them.
inline std::string to_string(const TilePolicy& tile) {
  std::string text = std::to_string(tile.channels);
  for (const int value : {tile.octets, tile.groups, tile.blocks}) text.append(" ").append(std::to_string(value));
  return text;
}

inline std::string to_string(const KernelPolicy& policy) {
  const auto number = [](int value) { return std::to_string(value); };
  const std::string suffix = policy.tuned ? "" : " untuned";
  if (policy.variant == Variant::tile)
    return "tile{channels " + number(policy.tile.channels) + ", octets " + number(policy.tile.octets) + ", groups " +
           number(policy.tile.groups) + ", blocks " + number(policy.tile.blocks) + ", shared ranks " +
           number(policy.shared_ranks) + "}" + suffix;
  return to_string(policy.variant) + "{vector " + number(policy.gather.vector) + ", group " +
         number(policy.gather.group) + ", chunks " + number(policy.gather.chunks) + "}" + suffix;
}

}  // namespace s2attn::cuda
