// Computes: what backward_tile.cuh computes, of key owners, with a pair of warps for every 16.
// Mapping: as backward_tile.cuh, but the first warp of a pair has keys and queries, and sums dk; the second one has
//   values and dy, and sums dv. That is half of the registers each. They exchange what they find: p and its gradient.
// Layout, Requires: as backward_tile.cuh; KeyPair::kBytes of dynamic shared memory, or what merge_shares needs.
// Numerics: as backward_tile.cuh.
#pragma once

#include "../device/pairs.cuh"
#include "../policy.h"
#include "backward_tile.cuh"

namespace s2attn::cuda {

// The shared memory of a block: parked owners of every warp, then the exchange.
template <typename Tile, typename storage_t>
struct KeyPair {
  using Cores = BackwardCores<storage_t, Tile::kChannels>;
  using Exchange = PairExchange<Tile::kOctets, Tile::kGroups>;

  static constexpr int kExchange = Tile::kThreads / kWarp * Cores::kParkedBytes;  // where it is
  static constexpr int kBytes = kExchange + Exchange::kBytes;
  static constexpr int kMerged = kMergedBytes<Tile::kChannels>;  // of a warp
  static constexpr int kAtMost = shared_bytes({Tile::kChannels, Tile::kOctets, Tile::kGroups, Tile::kBlocks},
                                              Storage::float32, Pass::backward_key);
  static_assert(kBytes <= kAtMost && (Tile::kOctets - 1) * 2 * kMerged <= kAtMost);
};

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_key_pair(const __grid_constant__ BackwardParams p, const __grid_constant__ TileGrid grid) {
#if S2ATTN_TILES
  using Layout = KeyPair<Tile, storage_t>;
  using Cores = typename Layout::Cores;
  const auto tile = find_owners<Tile::kOctets, 2>(grid);
  if (tile.column >= grid.columns) return;
  const int role = tile.role();
  const HeadChannels channels(p.shape, tile.head, role ? p.shape.channels_out : p.shape.channels);
  const uint64_t first_query = first_point(tile.batch, p.shape.query), first_key = first_point(tile.batch, p.shape.key);
  const LaneOwner owners[2] = {lane_owner(tile, grid, 0), lane_owner(tile, grid, 1)};
  const auto owner_tensor = channels.rows<storage_t>(role ? p.v : p.k, first_key);
  const auto partner_tensor = channels.rows<storage_t>(role ? p.dy : p.q, first_query);
  typename Cores::OwnerPackets packets;
  KeyWeights<storage_t> weights;
  Cores::read(packets, {owner_tensor.row(owners[0].point), owner_tensor.row(owners[1].point)}, channels.count);
  weights.read(p, owners);
  typename Cores::OwnerTile tile_of_owners;
  typename Cores::SumTile sums;
  float owner_scales[2] = {};
  const auto begin = [&] {
    Cores::arrange(tile_of_owners, packets, channels.count, shared_memory() + threadIdx.x / kWarp * Cores::kParkedBytes,
                   owner_scales);
#pragma unroll
    for (float& scale : owner_scales) scale *= role ? 1.0f : kLog2E;
    weights.arrange(p);
    wait_for_primary();
  };
  // of every query the first warp reads the first number, the second one the second
  const float* statistics_of_head = p.workspace + 2 * (first_query * p.shape.heads + tile.head) + role;
  const PartnerSource source{p.key_table, p.shape.query, grid.rows, nullptr, 1.0f, true};
  typename Layout::Exchange exchange(shared_memory() + Layout::kExchange);
  SumScales<Cores::kScaled> sum_scales;
  visit_partners<Tile::kGroups>(source, tile, Cores::first_column(), begin, [&]<int kCount>(const Step& step) {
    typename Cores::template PartnerRows<kCount> rows;
    typename Cores::template PartnerTile<kCount> partners;
    float statistics[kCount][2];
    Cores::load(rows, [&](int column) { return partner_tensor.row(step.point(column)); }, channels.count);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        statistics[i][e] =
            statistics_of_head[step.point(i * kGroupColumns + Cores::first_column() + Cores::kColumnStep * e) *
                               (2 * uint64_t{static_cast<uint32_t>(p.shape.heads)})];
    float own[kCount][4] = {}, other[kCount][4], scales[kCount][2] = {};
    Cores::split(partners, rows, scales);
    Cores::scores(tile_of_owners, partners, own);
    const auto for_each = [&](const auto& visit) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) visit(i, e);
    };
    const auto unit = [&](int i, int e) {
      return Cores::kScaled ? owner_scales[e / 2] * scales[i][e % 2] : role ? 1.0f : kLog2E;
    };
    if (role == 0)
      for_each([&](int i, int e) {
        const float exponent = own[i][e] * unit(i, e) + (weights.logarithms[e / 2] - statistics[i][e % 2]);
        const bool held = step.mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2);
        own[i][e] = held ? exp2_approximate(exponent) : 0.0f;
      });
    else
      for_each([&](int i, int e) { own[i][e] = own[i][e] * unit(i, e) - statistics[i][e % 2]; });
    exchange.swap(role, own, other);
    for_each([&](int i, int e) { own[i][e] = role ? other[i][e] : own[i][e] * other[i][e]; });
    if (role ? !p.dv : !p.dk) return;
    sum_scales.apply(own, scales, sums);
    Cores::accumulate(sums, own, partners);
  });
  sum_scales.remove(sums);
  if (!merge_shares(tile, shared_memory(), sums)) return;
  const LaneOwner written[2] = {lane_owner(tile.again(), grid, 0), lane_owner(tile.again(), grid, 1)};
  void* gradient = role ? p.dv : p.dk;
  const auto gradient_rows = channels.rows<storage_t>(gradient, first_key);
  storage_t* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) rows[i] = written[i].exists && gradient ? gradient_rows.row(written[i].point) : nullptr;
  Cores::store(sums, weights.factors, rows, channels.count);
#endif
}

}  // namespace s2attn::cuda
