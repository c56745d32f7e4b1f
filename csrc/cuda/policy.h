// Which kernels serve a call, and how they are laid out: a value. tunings.h says where each is used, select.h chooses.
// Plain C++, so that the choice is tested without a GPU.
#pragma once

#include <string>

#include "../problem.h"

namespace s2attn::cuda {

// gather:   portable. One warp per owner, partners in groups, one update of an online softmax per group.
// two_pass: portable. As gather, but the maximum of the scores is found in a pass of its own, before the sums.
// tile:     tensor cores (sm_80 and later). 16 owners per warp, whose partners are loaded once for all of a block.
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

// tile: a warp per octet of columns (device/strips.cuh), stages buffers of stage_rows partners each. All zero: no tile.
struct TilePolicy {
  int channels;  // room for so many of q and k, and of v
  int octets;
  int stage_rows;
  int stages;
  int groups;  // of 8 partners that a warp multiplies at a time
  int blocks;  // per multiprocessor, for which registers are allotted

  constexpr bool operator==(const TilePolicy&) const = default;
  constexpr bool exists() const { return channels > 0; }
  constexpr int threads() const { return 32 * octets; }
};

// Of a block, dynamic: the plan of the strips and its stages (StageMemory in device/strips.cuh, which must agree).
constexpr int shared_bytes(const TilePolicy& tile, Storage storage, Pass pass) {
  const int rows = tile.stage_rows + 7;
  const int statistics = pass == Pass::backward_key ? (rows + 1) * 8 : 0;
  const int plan = (1297 + 4 * tile.stages * tile.stage_rows + 15) / 16 * 16;
  return plan + tile.stages * (2 * rows * (tile.channels * element_bytes(storage) + 16) + statistics);
}

// Whether the tile kernels can be compiled for a policy.
constexpr bool can_be_compiled(const TilePolicy& tile, Storage storage) {
  const int packets = tile.channels * element_bytes(storage) / 16;  // of a row
  return tile.channels > 0 && tile.channels % 32 == 0 && tile.octets > 0 && tile.stages >= 2 && tile.stage_rows > 0 &&
         tile.stage_rows <= tile.threads() && tile.threads() % packets == 0 &&
         tile.stage_rows % (tile.threads() / packets) == 0 && tile.stage_rows % 2 == 0 && tile.groups >= 1 &&
         tile.groups <= 4 && tile.blocks >= 1 && tile.blocks * tile.threads() <= 1024;  // 64 registers and more
}

struct KernelPolicy {
  Variant variant;
  GatherPolicy gather;  // of gather and two_pass
  TilePolicy tile;      // of tile
  bool tuned;           // measured on this architecture, and found to be the fastest
  // Whether the warps of a tile next to a pole share one octet of owners (device/strips.cuh).
  bool shares_poles = false;

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
  for (const int value : {tile.octets, tile.stage_rows, tile.stages, tile.groups, tile.blocks})
    text.append(" ").append(std::to_string(value));
  return text;
}

inline std::string to_string(const KernelPolicy& policy) {
  const auto number = [](int value) { return std::to_string(value); };
  const std::string suffix = policy.tuned ? "" : " untuned";
  if (policy.variant == Variant::tile)
    return "tile{channels " + number(policy.tile.channels) + ", octets " + number(policy.tile.octets) + ", rows " +
           number(policy.tile.stages) + "x" + number(policy.tile.stage_rows) + ", groups " +
           number(policy.tile.groups) + ", blocks " + number(policy.tile.blocks) +
           (policy.shares_poles ? ", poles shared}" : "}") + suffix;
  return to_string(policy.variant) + "{vector " + number(policy.gather.vector) + ", group " +
         number(policy.gather.group) + ", chunks " + number(policy.gather.chunks) + "}" + suffix;
}

}  // namespace s2attn::cuda
