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

// tile: pairs x octets warps per block (device/strips.cuh), buffers of stage_rows partners.
struct TilePolicy {
  int channels;  // room for so many of q and k, and of v
  int pairs;
  int octets;
  int stage_rows;
  int stages;

  constexpr bool operator==(const TilePolicy&) const = default;
};

struct KernelPolicy {
  Variant variant;
  GatherPolicy gather;  // of gather and two_pass
  TilePolicy tile;      // of tile

  constexpr bool operator==(const KernelPolicy&) const = default;
};

inline constexpr GatherPolicy kSharedMemoryPolicy{1, 32, 0};

// Every policy that is compiled, narrowest first: the first that fits leaves the fewest lanes without a channel.
inline constexpr GatherPolicy kGatherPolicies[] = {
    {4, 4, 1}, {4, 8, 1}, {4, 16, 1}, {4, 32, 1}, {1, 8, 1}, {1, 32, 2}, kSharedMemoryPolicy,
};
inline constexpr TilePolicy kTilePolicies16[] = {{32, 2, 2, 96, 2}, {64, 2, 2, 80, 2}};  // float16, bfloat16
inline constexpr TilePolicy kTilePolicies32[] = {{32, 2, 2, 64, 2}, {64, 2, 2, 64, 2}};  // float32

constexpr int kFirstTileArchitecture = 80;

struct ProblemFacts {
  int32_t channels;      // of q and k, per head
  int32_t channels_out;  // of v and y, per head
  int element_bytes;     // 2 or 4
  int alignment_bytes;   // what the addresses of all tensors are a multiple of, at most 16
  int architecture;      // of the GPU: 90 for sm_90
};

constexpr GatherPolicy select_gather(const ProblemFacts& facts) {
  const int widest = facts.channels > facts.channels_out ? facts.channels : facts.channels_out;
  const bool whole_vectors = facts.alignment_bytes >= 4 * facts.element_bytes && facts.channels % 4 == 0 &&
                             facts.channels_out % 4 == 0;
  for (const GatherPolicy& policy : kGatherPolicies) {
    if (policy.vector > 1 && !whole_vectors) continue;
    if (policy.in_shared_memory() || widest <= policy.capacity()) return policy;
  }
  return kSharedMemoryPolicy;
}

// The tile policy that fits, or one without room where none does.
constexpr TilePolicy select_tile(const ProblemFacts& facts) {
  const int packet = 16 / facts.element_bytes;
  const bool whole_packets =
      facts.alignment_bytes >= 16 && facts.channels % packet == 0 && facts.channels_out % packet == 0;
  if (facts.architecture < kFirstTileArchitecture || !whole_packets) return {};
  const int widest = facts.channels > facts.channels_out ? facts.channels : facts.channels_out;
  for (const TilePolicy& policy : facts.element_bytes == 2 ? kTilePolicies16 : kTilePolicies32)
    if (widest <= policy.channels) return policy;
  return {};
}

constexpr KernelPolicy select_policy(const ProblemFacts& facts) {
  const TilePolicy tile = select_tile(facts);
  if (tile.channels > 0) return {Variant::tile, {}, tile};
  return {Variant::gather, select_gather(facts), {}};
}

inline std::string to_string(Variant variant) {
  return variant == Variant::gather ? "gather" : variant == Variant::two_pass ? "two_pass" : "tile";
}

inline std::string to_string(const KernelPolicy& policy) {
  const auto number = [](int value) { return std::to_string(value); };
  if (policy.variant == Variant::tile)
    return "tile{channels " + number(policy.tile.channels) + ", warps " + number(policy.tile.pairs) + "x" +
           number(policy.tile.octets) + ", rows " + number(policy.tile.stage_rows) + "x" + number(policy.tile.stages) +
           "}";
  return to_string(policy.variant) + "{vector " + number(policy.gather.vector) + ", group " +
         number(policy.gather.group) + ", chunks " + number(policy.gather.chunks) + "}";
}

// The policy of a variant that was asked for by name; empty: what select_policy() chooses.
// Throws std::invalid_argument for a name that does not exist, or a variant that cannot serve the problem.
inline KernelPolicy select_policy(const ProblemFacts& facts, std::string_view variant) {
  if (variant.empty()) return select_policy(facts);
  std::string known;
  for (const Variant candidate : kVariants) {
    known.append(known.empty() ? "" : ", ").append(to_string(candidate));
    if (variant != to_string(candidate)) continue;
    if (candidate != Variant::tile) return {candidate, select_gather(facts), {}};
    const KernelPolicy policy{candidate, {}, select_tile(facts)};
    if (policy.tile.channels > 0) return policy;
    throw std::invalid_argument(
        "S2ATTN_CUDA_VARIANT: got tile for " + std::to_string(facts.channels) + " and " +
        std::to_string(facts.channels_out) + " channels per head on sm_" + std::to_string(facts.architecture) +
        ", expected sm_80 or later, at most 64 channels in multiples of 16 bytes and aligned tensors");
  }
  throw std::invalid_argument("S2ATTN_CUDA_VARIANT: got " + std::string(variant) + ", expected one of " + known);
}

}  // namespace s2attn::cuda
