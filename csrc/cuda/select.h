// From what is known of a call to its policy, on the host.
#pragma once

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tunings.h"

namespace s2attn::cuda {

struct ProblemFacts {
  int32_t channels;      // of q and k, per head
  int32_t channels_out;  // of v and y, per head
  Storage storage;
  int alignment_bytes;  // what the addresses of all tensors are a multiple of, at most 16
  int64_t points;       // of the larger grid
  int64_t features;     // channels of all heads together, the larger of both
  int32_t width;        // of the neighborhood, see neighborhood_width()
  int architecture;     // of the GPU: 90 for sm_90
  int shared_bytes;     // the most that a block of the GPU may have
  int64_t octets;       // of owners: 8 columns of two rows of the gather table, of every batch and head
  int32_t partner_longitudes;
  bool finer_partners;  // the grid of the partners has more longitudes than that of the owners
};

// Owners share a row of the gather table with those that lie this many longitudes on.
constexpr int32_t owner_residues(Grid owners, Grid partners) {
  return owners.nlon > partners.nlon ? owners.nlon / partners.nlon : 1;
}

// Tiles of two rows of the gather table and 8 columns.
constexpr int64_t owner_octets(Grid owners, Grid partners) {
  const int64_t residues = owner_residues(owners, partners);
  return (owners.nlat * residues + 1) / 2 * ((owners.nlon / residues + 7) / 8);
}

// Partner latitudes of an owner, their mean rounded up. Of an owner's arcs nearly always one lies on a latitude.
constexpr int32_t neighborhood_width(int64_t arcs, Grid owners, Grid partners) {
  const int64_t rows = int64_t{owners.nlat} * owner_residues(owners, partners);
  return static_cast<int32_t>((arcs + rows - 1) / rows);
}

constexpr bool holds(const Scope& scope, const ProblemFacts& facts) {
  return covers(scope, {facts.architecture, storage_bit(facts.storage), facts.width, facts.octets});
}

constexpr KernelPolicy select_gather(const ProblemFacts& facts) {
  const int widest = std::max(facts.channels, facts.channels_out);
  const bool whole_vectors = facts.alignment_bytes >= 4 * element_bytes(facts.storage) && facts.channels % 4 == 0 &&
                             facts.channels_out % 4 == 0;
  for (const GatherRow& row : kGatherTable) {
    if ((row.policy.vector > 1 && !whole_vectors) || !holds(row.scope, facts)) continue;
    if (row.policy.in_shared_memory() || widest <= row.policy.capacity())
      return {Variant::gather, row.policy, {}, row.measurement.exists()};
  }
  return {Variant::gather, kSharedMemoryPolicy, {}, false};
}

// Whether the tile kernels can serve a problem at all.
constexpr bool takes_tiles(const ProblemFacts& facts) {
  const int bytes = element_bytes(facts.storage), packet = 16 / bytes;
  const bool whole_packets =
      facts.alignment_bytes >= 16 && facts.channels % packet == 0 && facts.channels_out % packet == 0;
  // points and bytes from one to the next are 32-bit numbers there
  const bool small = facts.points < (int64_t{1} << 31) && facts.features * bytes < (int64_t{1} << 31);
  // a step of a window goes over the seam at most once
  const bool wide = facts.partner_longitudes >= kFewestTileLongitudes;
  return facts.architecture >= kFirstTileArchitecture && whole_packets && small && wide;
}

constexpr bool fits(const TilePolicy& tile, const ProblemFacts& facts, Pass pass) {
  return std::max(facts.channels, facts.channels_out) <= tile.channels &&
         shared_bytes(tile, facts.storage, pass) <= facts.shared_bytes;
}

// The first row whose tile serves the problem; without a tile where none does, or where the row says gather.
constexpr KernelPolicy select_tile(const ProblemFacts& facts, Pass pass) {
  if (!takes_tiles(facts)) return {};
  for (const TileRow& row : kTileTable) {
    if (row.pass != pass || std::max(facts.channels, facts.channels_out) > row.channels || !holds(row.scope, facts))
      continue;
    if (!row.policy.exists()) return {};
    if (fits(row.policy, facts, pass)) return {Variant::tile, {}, row.policy, row.measurement.exists()};
  }
  return {};
}

// A block next to a pole has many times the partners of another, and a kernel of few blocks ends when it does: there
// the warps of a block share an octet. Counted in tile rows from both poles. Measured with 0, 2, 4, 6 and 10 of them
// (H200, decision 0025): without sharing a kernel at 1 degree takes up to 1.5, a grid with finer partners up to 2 of
// the time. With cutoff 0.1 at 1 degree 6 ranks take 0.91 (float32 forward) and 0.93 of that with 2, but a 16-bit
// forward 1.05. At half a degree sharing changes nothing or takes up to 1.02, but a forward with cutoff 0.017: 0.97.
constexpr int shared_ranks(const TilePolicy& tile, const ProblemFacts& facts, Pass pass) {
  constexpr int kNarrow = 4, kWide = 8;
  const bool brief = pass == Pass::forward && facts.width <= kNarrow;
  const int64_t many_octets = brief ? 1 << 15 : 1 << 13;
  if (tile.octets == 1 || facts.octets > many_octets) return 0;
  if (facts.finer_partners) return facts.width > 2 * kWide ? 6 : 4;
  const bool quick = facts.storage != Storage::float32 && pass != Pass::backward_key;
  return facts.width > kWide && !quick ? 6 : 2;
}

constexpr KernelPolicy select_policy(const ProblemFacts& facts, Pass pass) {
  const KernelPolicy tile = select_tile(facts, pass);
  return tile.tile.exists() ? tile : select_gather(facts);
}

// What a process asks for instead of the best; empty: nothing.
struct Requests {
  std::string_view variant;  // S2ATTN_CUDA_VARIANT: one of kVariants by name, for every call
  std::string_view tile;     // S2ATTN_CUDA_TILE: a pass, and "gather" or the numbers of a tile for it
};

// The policy of a variant that was asked for by name.
// Throws std::invalid_argument for a name that does not exist, or a variant that cannot serve the problem.
inline KernelPolicy select_variant(const ProblemFacts& facts, Pass pass, std::string_view variant) {
  std::string known;
  for (const Variant candidate : kVariants) {
    known.append(known.empty() ? "" : ", ").append(to_string(candidate));
    if (variant != to_string(candidate)) continue;
    if (candidate == Variant::gather) return select_gather(facts);
    if (candidate == Variant::two_pass) return {candidate, select_gather(facts).gather, {}, false};
    if (const KernelPolicy policy = select_tile(facts, pass); policy.tile.exists()) return policy;
    throw std::invalid_argument("S2ATTN_CUDA_VARIANT: got tile for " + std::to_string(facts.channels) + " and " +
                                std::to_string(facts.channels_out) + " channels per head on sm_" +
                                std::to_string(facts.architecture) +
                                ", expected sm_80 or later, at most 128 channels in multiples of 16 bytes, aligned "
                                "tensors, and partners of at least " +
                                std::to_string(kFewestTileLongitudes) + " longitudes");
  }
  throw std::invalid_argument("S2ATTN_CUDA_VARIANT: got " + std::string(variant) + ", expected one of " + known);
}

// What may be measured in place of the chosen policy, as S2ATTN_CUDA_TILE takes it: the chosen tile first, then those
// of its neighbors that are compiled and fit, and gather. Empty where no tile is chosen.
inline std::vector<std::string> candidates(const ProblemFacts& facts, Pass pass) {
  const TilePolicy chosen = select_tile(facts, pass).tile;
  if (!chosen.exists()) return {};
  std::vector<std::string> names{to_string(chosen)};
  const TileList compiled = compiled_tiles(facts.storage, pass);
  TileList neighbors;
  add_neighbors(neighbors, chosen, facts.storage, pass);
  for (int i = 0; i < compiled.count; ++i) {
    const TilePolicy& tile = compiled.tiles[i];
    if (tile != chosen && neighbors.holds(tile) && fits(tile, facts, pass)) names.push_back(to_string(tile));
  }
  names.push_back(to_string(Variant::gather));
  return names;
}

// The tile, or gather, that was asked for by its numbers.
// Throws std::invalid_argument for one that is not among candidates().
inline KernelPolicy select_candidate(const ProblemFacts& facts, Pass pass, const std::string& name) {
  std::string known;
  for (const std::string& candidate : candidates(facts, pass)) {
    known.append(known.empty() ? "" : ", ").append(candidate);
    if (candidate != name) continue;
    if (name == to_string(Variant::gather)) return select_gather(facts);
    TilePolicy tile{};
    std::istringstream(name) >> tile.channels >> tile.octets >> tile.groups >> tile.blocks;
    const KernelPolicy chosen = select_tile(facts, pass);
    return {Variant::tile, {}, tile, chosen.tuned && chosen.tile == tile};
  }
  throw std::invalid_argument("S2ATTN_CUDA_TILE: got " + name + " for the " + to_string(pass) + ", expected one of " +
                              (known.empty() ? "none: no tile serves this problem" : known));
}

inline KernelPolicy select_requested(const ProblemFacts& facts, Pass pass, const Requests& requests) {
  if (!requests.tile.empty()) {
    const size_t space = std::min(requests.tile.find(' '), requests.tile.size() - 1);
    const std::string asked(requests.tile.substr(0, space)), name(requests.tile.substr(space + 1));
    if (std::ranges::none_of(kPasses, [&](Pass known) { return asked == to_string(known); }))
      throw std::invalid_argument("S2ATTN_CUDA_TILE: got " + std::string(requests.tile) +
                                  ", expected forward, backward_query or backward_key, and a tile or gather");
    if (asked == to_string(pass)) return select_candidate(facts, pass, name);
  }
  if (!requests.variant.empty()) return select_variant(facts, pass, requests.variant);
  return select_policy(facts, pass);
}

inline KernelPolicy select_policy(const ProblemFacts& facts, Pass pass, const Requests& requests) {
  KernelPolicy policy = select_requested(facts, pass, requests);
  if (policy.variant == Variant::tile) policy.shared_ranks = shared_ranks(policy.tile, facts, pass);
  return policy;
}

}  // namespace s2attn::cuda
