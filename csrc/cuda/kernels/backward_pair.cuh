// Computes: what backward_tile.cuh computes, with a pair of warps for every 16 owners.
// Mapping: as backward_tile.cuh, but each warp of a pair holds one of the owners' two tensors, which is half of the
//   registers, and multiplies it with one of the partners' two. Of query owners the warps exchange what they find, and
//   sum half of the channels of dq each; of key owners the first sums dv, and the second dk from what the first finds.
// Layout, Requires: as backward_tile.cuh; PairLayout::kBytes of dynamic shared memory, or what merge_shares needs.
// Numerics: as backward_tile.cuh; both warps have the same weights and gradients to the bit.
#pragma once

#include "../device/pairs.cuh"
#include "../policy.h"
#include "backward_statistics.cuh"
#include "backward_tile.cuh"

namespace s2attn::cuda {

// Of a pass: what a warp sums, and the shared memory of a block: parked owners of every warp, then the exchange.
template <typename Tile, typename storage_t, int kWriters, int kSummed>
struct PairLayout {
  using Cores = TensorCores<storage_t, Tile::kChannels>;
  using SumCores = TensorCores<storage_t, kSummed>;
  using Exchange = PairExchange<Tile::kOctets, kWriters, Tile::kGroups>;

  // Whether high parts are parked too: the other fragments of a step leave fewer registers than the rest of it takes.
  // Chosen so that steps of 16 partners (64 channels) and of 8 (128) spill nothing (CUDA 13.0, sm_90).
  static constexpr int kRegisters =
      65536 / (Tile::kThreads * Tile::kBlocks) < 255 ? 65536 / (Tile::kThreads * Tile::kBlocks) : 255;
  static constexpr int kFragments = Tile::kChannels / 2 + kSummed / 2 + Tile::kGroups * (Tile::kChannels + kSummed) / 4;
  static constexpr bool kParksHigh = kRegisters - kFragments < 64;

  using Parked = typename Cores::template ParkedTile<kParksHigh>;
  static constexpr int kParkedBytes = Cores::template kParkedBytes<kParksHigh>;  // of a warp
  static constexpr int kExchange = Tile::kThreads / kWarp * kParkedBytes;        // where it is
  static constexpr int kBytes = kExchange + Exchange::kBytes;
  static constexpr int kMerged = kMergedBytes<kSummed>;  // of a warp
  static constexpr int kAtMost = shared_bytes({Tile::kChannels, Tile::kOctets, Tile::kGroups, Tile::kBlocks},
                                              Storage::float32, Pass::backward_key);
  static_assert(kBytes <= kAtMost && (Tile::kOctets - 1) * 2 * kMerged <= kAtMost);
};

template <typename Tile, typename storage_t>
using QueryPair = PairLayout<Tile, storage_t, 2, Tile::kChannels / 2>;
template <typename Tile, typename storage_t>
using KeyPair = PairLayout<Tile, storage_t, 1, Tile::kChannels>;

// The first warp of a pair has queries and keys, and p; the second one dy, values and their product.
template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_query_pair(const __grid_constant__ BackwardParams p, const __grid_constant__ TileGrid grid) {
#if S2ATTN_TILES
  using Layout = QueryPair<Tile, storage_t>;
  using Cores = typename Layout::Cores;
  using HalfCores = typename Layout::SumCores;
  const auto tile = find_owners<Tile::kOctets, 2>(grid);
  trigger_dependent_launch();
  if (tile.column >= grid.columns) return;
  const int role = tile.role();
  const HeadChannels in(p.shape, tile.head, p.shape.channels), out(p.shape, tile.head, p.shape.channels_out);
  const HeadChannels multiplied = role ? out : in, summed = in.part(role, Tile::kChannels / 2);
  const uint64_t first_query = first_point(tile.batch, p.shape.query), first_key = first_point(tile.batch, p.shape.key);
  const LaneOwner owners[2] = {lane_owner(tile, grid, 0), lane_owner(tile, grid, 1)};
  const auto owner_tensor = multiplied.rows<storage_t>(role ? p.dy : p.q, first_query);
  const auto y = out.rows<storage_t>(p.y, first_query);
  const auto factor_tensor = multiplied.rows<storage_t>(role ? p.v : p.k, first_key);
  const auto addend_tensor = summed.rows<storage_t>(p.k, first_key);
  typename Cores::OwnerPackets packets, y_packets;
  const auto statistics_row = [&](const LaneOwner& owner) {
    return (first_query + owner.point) * p.shape.heads + tile.head;
  };
  float statistics[2];  // the first warp has lse * log2(e) - weight_exponent, the second delta
  Cores::read(packets, {owner_tensor.row(owners[0].point), owner_tensor.row(owners[1].point)}, multiplied.count);
  if (role) Cores::read(y_packets, {y.row(owners[0].point), y.row(owners[1].point)}, y.channels);
#pragma unroll
  for (int i = 0; i < 2; ++i) statistics[i] = p.lse[statistics_row(owners[i])];
  typename Layout::Parked parked;
  typename HalfCores::SumTile dq;
  const auto begin = [&] {
    typename Cores::OwnerTile arranged;
    Cores::arrange(arranged, packets, multiplied.count);
    Cores::park(parked, arranged, shared_memory() + threadIdx.x / kWarp * Layout::kParkedBytes);
    if (role) Cores::dot(arranged, y_packets, statistics);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      statistics[i] = role ? quad_sum(statistics[i]) : statistics[i] * kLog2E - p.weight_exponent;
      if (!kCorrected<storage_t> && owners[i].exists && lane_index() % 4 == 0 && tile.share == 0)
        p.workspace[2 * statistics_row(owners[i]) + role] = statistics[i];
    }
  };
  const PartnerSource source{p.query_table,         p.shape.key, grid.rows, p.quad_weights, exp2f(-p.weight_exponent),
                             !kCorrected<storage_t>};
  typename Layout::Exchange exchange(shared_memory() + Layout::kExchange);
  WeightSums sums[2];
  visit_partners<Tile::kGroups>(source, tile, Cores::first_column(), begin, [&]<int kCount>(const Step& step) {
    typename Cores::template Factors<kCount> factors;
    typename HalfCores::template Addends<kCount> addends;
    Cores::load(factors, [&](int column) { return factor_tensor.row(step.point(column)); }, factor_tensor.channels);
    HalfCores::load_addends(
        addends, [&](int column) { return addend_tensor.row(step.point(column)); }, addend_tensor.channels);
    float own[kCount][4] = {};
    Cores::scores(parked, factors, own);
    const auto for_each = [&](const auto& visit) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) visit(i, e);
    };
    if (role == 0)
      for_each([&](int i, int e) {
        // float32 multiplies by the weight: the sum with its logarithm would be rounded once more
        const float exponent = own[i][e] * kLog2E + ((kCorrected<storage_t> ? 0.0f : step.weight) - statistics[e / 2]);
        own[i][e] = (kCorrected<storage_t> ? step.weight : 1.0f) * exp2_approximate(exponent);
      });
    else
      for_each([&](int i, int e) { own[i][e] -= statistics[e / 2]; });
    for_each([&](int i, int e) {
      if (!step.mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2)) own[i][e] = 0.0f;
    });
    float other[kCount][4], ds[kCount][4];
    exchange.swap(role, own, other);
    for_each([&](int i, int e) { ds[i][e] = own[i][e] * other[i][e]; });
    if constexpr (kCorrected<storage_t>) {
      if (role == 0)
        for_each([&](int i, int e) { sums[e / 2].add(own[i][e], ds[i][e]); });
      else
        for_each([&](int i, int e) { sums[e / 2].add(other[i][e], ds[i][e]); });
    }
    HalfCores::accumulate(dq, ds, addends);
  });
  const auto merged = [&](const float (&others)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i].add(others[i], others[2 + i]);
    return float2{1.0f, 1.0f};
  };
  const float more[4] = {sums[0].probability, sums[1].probability, sums[0].gradient, sums[1].gradient};
  if (!merge_shares(tile, shared_memory(), dq, more, merged)) return;
  const LaneOwner written[2] = {lane_owner(tile.again(), grid, 0), lane_owner(tile.again(), grid, 1)};
  const auto dq_channels = summed.rows<storage_t>(p.dq, first_query);
  storage_t* dq_rows[2];
  float factors[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    dq_rows[i] = written[i].exists && p.dq ? dq_channels.row(written[i].point) : nullptr;
    if constexpr (kCorrected<storage_t>) {
      const WeightSums all{quad_sum(sums[i].probability), quad_sum(sums[i].gradient)};
      factors[i] = all.factor();
      if (!written[i].exists || lane_index() % 4 != 0) continue;
      const float2 corrected = all.corrected({statistics[i], statistics[i]});
      p.workspace[2 * statistics_row(written[i]) + role] = role ? corrected.y : corrected.x;
    }
  }
  HalfCores::store(dq, factors, dq_rows, summed.count);
#endif
}

// The first warp of a pair has keys and queries, and sums dv; the second one values and dy, and sums dk.
template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_key_pair(const __grid_constant__ BackwardParams p, const __grid_constant__ TileGrid grid) {
#if S2ATTN_TILES
  using Layout = KeyPair<Tile, storage_t>;
  using Cores = typename Layout::Cores;
  const auto tile = find_owners<Tile::kOctets, 2>(grid);
  if (tile.column >= grid.columns) return;
  const int role = tile.role();
  const HeadChannels in(p.shape, tile.head, p.shape.channels), out(p.shape, tile.head, p.shape.channels_out);
  const HeadChannels multiplied = role ? out : in, summed = role ? in : out;
  const uint64_t first_query = first_point(tile.batch, p.shape.query), first_key = first_point(tile.batch, p.shape.key);
  const LaneOwner owners[2] = {lane_owner(tile, grid, 0), lane_owner(tile, grid, 1)};
  const auto owner_tensor = multiplied.rows<storage_t>(role ? p.v : p.k, first_key);
  const auto factor_tensor = multiplied.rows<storage_t>(role ? p.dy : p.q, first_query);
  const auto addend_tensor = summed.rows<storage_t>(role ? p.q : p.dy, first_query);
  typename Cores::OwnerPackets packets;
  KeyWeights<storage_t> weights;
  Cores::read(packets, {owner_tensor.row(owners[0].point), owner_tensor.row(owners[1].point)}, multiplied.count);
  weights.read(p, owners);
  typename Layout::Parked parked;
  typename Cores::SumTile sums;
  const auto begin = [&] {
    weights.arrange(p);
    typename Cores::OwnerTile arranged;
    Cores::arrange(arranged, packets, multiplied.count);
    Cores::park(parked, arranged, shared_memory() + threadIdx.x / kWarp * Layout::kParkedBytes);
    wait_for_primary();
  };
  // of every query the first warp reads the first number, the second one the second
  const float* statistics_of_head = p.workspace + 2 * (first_query * p.shape.heads + tile.head) + role;
  const PartnerSource source{p.key_table, p.shape.query, grid.rows, nullptr, 1.0f, true};
  typename Layout::Exchange exchange(shared_memory() + Layout::kExchange);
  visit_partners<Tile::kGroups>(source, tile, Cores::first_column(), begin, [&]<int kCount>(const Step& step) {
    typename Cores::template Factors<kCount> factors;
    typename Cores::template Addends<kCount> addends;
    float statistics[kCount][2];
    Cores::load(factors, [&](int column) { return factor_tensor.row(step.point(column)); }, factor_tensor.channels);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        statistics[i][e] =
            statistics_of_head[step.point(i * kGroupColumns + Cores::first_column() + Cores::kColumnStep * e) *
                               (2 * uint64_t{static_cast<uint32_t>(p.shape.heads)})];
    float own[kCount][4] = {};
    Cores::scores(parked, factors, own);
    Cores::load_addends(
        addends, [&](int column) { return addend_tensor.row(step.point(column)); }, addend_tensor.channels);
    if (role == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float exponent = own[i][e] * kLog2E + (weights.logarithms[e / 2] - statistics[i][e % 2]);
          const bool held = step.mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2);
          own[i][e] = held ? exp2_approximate(exponent) : 0.0f;
        }
      exchange.send(own);
      if (!p.dv) return;
    } else {
      float probabilities[kCount][4];
      exchange.receive(probabilities);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) own[i][e] = probabilities[i][e] * (own[i][e] - statistics[i][e % 2]);
      if (!p.dk) return;
    }
    Cores::accumulate(sums, own, addends);
  });
  if (!merge_shares(tile, shared_memory(), sums)) return;
  const LaneOwner written[2] = {lane_owner(tile.again(), grid, 0), lane_owner(tile.again(), grid, 1)};
  void* gradient = role ? p.dk : p.dv;
  const auto gradient_channels = summed.rows<storage_t>(gradient, first_key);
  storage_t* gradient_rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    gradient_rows[i] = written[i].exists && gradient ? gradient_channels.row(written[i].point) : nullptr;
  Cores::store(sums, weights.factors, gradient_rows, summed.count);
#endif
}

}  // namespace s2attn::cuda
