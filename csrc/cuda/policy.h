// Which kernels serve a call, and how they are laid out: a value, chosen on the host by select_policy().
// Plain C++, so that the choice is tested without a GPU.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace s2attn::cuda {

// gather:   portable. One warp per owner, partners in groups, one update of an online softmax per group.
// two_pass: portable. As gather, but the maximum of the scores is found in a pass of its own, before the sums.
// tile:     tensor cores (sm_80 and later). 16 owners per warp, whose partners are loaded once for all of a block.
enum class Variant { gather, two_pass, tile };

inline constexpr Variant kVariants[] = {Variant::gather, Variant::two_pass, Variant::tile};

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

// What a tile kernel computes; each of them is laid out for itself.
enum class Pass { forward, backward_query, backward_key };

// tile: a warp per octet of columns (device/strips.cuh), stages buffers of stage_rows partners each.
struct TilePolicy {
  int channels;  // room for so many of q and k, and of v
  int octets;
  int stage_rows;
  int stages;
  int groups;  // of 8 partners that a warp multiplies at a time
  int blocks;  // per multiprocessor, for which registers are allotted

  constexpr bool operator==(const TilePolicy&) const = default;
};

struct KernelPolicy {
  Variant variant;
  GatherPolicy gather;  // of gather and two_pass
  TilePolicy tile;      // of tile

  constexpr bool operator==(const KernelPolicy&) const = default;
};

// Of one variant both.
struct BackwardPolicies {
  KernelPolicy query;
  KernelPolicy key;
};

inline constexpr GatherPolicy kSharedMemoryPolicy{1, 32, 0};

// Every policy that is compiled, narrowest first: the first that fits leaves the fewest lanes without a channel.
inline constexpr GatherPolicy kGatherPolicies[] = {
    {4, 4, 1}, {4, 8, 1}, {4, 16, 1}, {4, 32, 1}, {1, 8, 1}, {1, 32, 2}, kSharedMemoryPolicy,
};
// Every tile that is compiled, the first that fits is taken.
//
// Found on an H200 (sm_90, self-attention and downsampling at 0.5 and 1 degree, cutoffs 0.017 and 0.03, C = 64, 2026-11):
// 2 x 32 owners per block are 3-12 % faster than 4 x 16 in every case; 3 stages instead of 2 cost 1-25 %. Rows for 32
// channels were not timed, and other architectures take all of them untuned.
struct TileEntry {
  int element_bytes;
  Pass pass;
  TilePolicy policy;
};

inline constexpr TileEntry kTilePolicies[] = {
    {2, Pass::forward, {32, 4, 96, 2, 4, 4}},        {2, Pass::forward, {64, 4, 80, 2, 4, 4}},
    {2, Pass::backward_query, {32, 4, 96, 2, 2, 4}}, {2, Pass::backward_query, {64, 4, 80, 2, 2, 3}},
    {2, Pass::backward_key, {32, 4, 96, 2, 2, 3}},   {2, Pass::backward_key, {64, 4, 80, 2, 2, 3}},
    {4, Pass::forward, {32, 4, 64, 2, 2, 3}},        {4, Pass::forward, {64, 4, 64, 2, 2, 2}},
    {4, Pass::backward_query, {32, 4, 64, 2, 2, 2}}, {4, Pass::backward_query, {64, 4, 64, 2, 2, 2}},
    {4, Pass::backward_key, {32, 4, 64, 2, 2, 2}},   {4, Pass::backward_key, {64, 4, 64, 2, 2, 2}},
};
inline constexpr int kTilePolicyCount = sizeof(kTilePolicies) / sizeof(kTilePolicies[0]);

constexpr int kFirstTileArchitecture = 80;

struct ProblemFacts {
  int32_t channels;      // of q and k, per head
  int32_t channels_out;  // of v and y, per head
  int element_bytes;     // 2 or 4
  int alignment_bytes;   // what the addresses of all tensors are a multiple of, at most 16
  int64_t points;        // of the larger grid
  int64_t features;      // channels of all heads together, the larger of both
  int architecture;      // of the GPU: 90 for sm_90
};

constexpr GatherPolicy select_gather(const ProblemFacts& facts) {
  const int widest = facts.channels > facts.channels_out ? facts.channels : facts.channels_out;
  const bool whole_vectors =
      facts.alignment_bytes >= 4 * facts.element_bytes && facts.channels % 4 == 0 && facts.channels_out % 4 == 0;
  for (const GatherPolicy& policy : kGatherPolicies) {
    if (policy.vector > 1 && !whole_vectors) continue;
    if (policy.in_shared_memory() || widest <= policy.capacity()) return policy;
  }
  return kSharedMemoryPolicy;
}

// The first tile that fits, or one without room where none does.
constexpr TilePolicy select_tile(const ProblemFacts& facts, Pass pass) {
  const int packet = 16 / facts.element_bytes;
  const bool whole_packets =
      facts.alignment_bytes >= 16 && facts.channels % packet == 0 && facts.channels_out % packet == 0;
  // points and bytes from one to the next are 32-bit numbers there
  const bool small = facts.points < (int64_t{1} << 31) && facts.features * facts.element_bytes < (int64_t{1} << 31);
  if (facts.architecture < kFirstTileArchitecture || !whole_packets || !small) return {};
  const int widest = facts.channels > facts.channels_out ? facts.channels : facts.channels_out;
  for (const TileEntry& row : kTilePolicies)
    if (row.element_bytes == facts.element_bytes && row.pass == pass && widest <= row.policy.channels)
      return row.policy;
  return {};
}

constexpr KernelPolicy select_policy(const ProblemFacts& facts, Pass pass) {
  const TilePolicy tile = select_tile(facts, pass);
  if (tile.channels > 0) return {Variant::tile, {}, tile};
  return {Variant::gather, select_gather(facts), {}};
}

inline std::string to_string(Variant variant) {
  return variant == Variant::gather ? "gather" : variant == Variant::two_pass ? "two_pass" : "tile";
}

inline std::string to_string(const KernelPolicy& policy) {
  const auto number = [](int value) { return std::to_string(value); };
  if (policy.variant == Variant::tile)
    return "tile{channels " + number(policy.tile.channels) + ", octets " + number(policy.tile.octets) + ", rows " +
           number(policy.tile.stages) + "x" + number(policy.tile.stage_rows) + ", groups " +
           number(policy.tile.groups) + "}";
  return to_string(policy.variant) + "{vector " + number(policy.gather.vector) + ", group " +
         number(policy.gather.group) + ", chunks " + number(policy.gather.chunks) + "}";
}

// The policy of a variant that was asked for by name; empty: what select_policy() chooses.
// Throws std::invalid_argument for a name that does not exist, or a variant that cannot serve the problem.
inline KernelPolicy select_policy(const ProblemFacts& facts, Pass pass, std::string_view variant) {
  if (variant.empty()) return select_policy(facts, pass);
  std::string known;
  for (const Variant candidate : kVariants) {
    known.append(known.empty() ? "" : ", ").append(to_string(candidate));
    if (variant != to_string(candidate)) continue;
    if (candidate != Variant::tile) return {candidate, select_gather(facts), {}};
    const KernelPolicy policy{candidate, {}, select_tile(facts, pass)};
    if (policy.tile.channels > 0) return policy;
    throw std::invalid_argument(
        "S2ATTN_CUDA_VARIANT: got tile for " + std::to_string(facts.channels) + " and " +
        std::to_string(facts.channels_out) + " channels per head on sm_" + std::to_string(facts.architecture) +
        ", expected sm_80 or later, at most 64 channels in multiples of 16 bytes and aligned tensors");
  }
  throw std::invalid_argument("S2ATTN_CUDA_VARIANT: got " + std::string(variant) + ", expected one of " + known);
}

}  // namespace s2attn::cuda
