// Computes: what backward_gather computes, of query and key owners each in a kernel of its own.
// Layout, Mapping, Requires: as forward_tile; of float32 dynamic shared memory for both tensors of the owners;
//   statistics for the key owners, which the query owners leave: blocks of key owners may start before these have ended,
//   and wait for them (device/dependent_launch.cuh).
// Numerics: products as device/tensor_cores.cuh and, of float32, device/split_cores.cuh state, everything else in
//   float32; weights p and their gradients ds are rounded to the storage type before they multiply partners (float32:
//   split), so float16 loses gradients below 2^-24 unless the loss is scaled. A NaN or an infinity in a partner reaches
//   all owners whose windows hold it.
//   Deterministic: each owner sums its partners in one order.
#pragma once

#include <type_traits>

#include "../device/dependent_launch.cuh"
#include "../device/split_cores.cuh"
#include "backward_statistics.cuh"
#include "forward_tile.cuh"

namespace s2attn::cuda {

// What multiplies the channels of a storage type in a backward.
template <typename storage_t, int kChannels>
using BackwardCores =
    std::conditional_t<std::is_same_v<storage_t, float>, SplitCores<kChannels>, TensorCores<storage_t, kChannels>>;

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_query_tile(const __grid_constant__ BackwardParams p, const __grid_constant__ TileGrid grid) {
#if S2ATTN_TILES
  using Cores = BackwardCores<storage_t, Tile::kChannels>;
  const auto tile = find_owners<Tile::kOctets>(grid);
  trigger_dependent_launch();
  if (tile.column >= grid.columns) return;
  const HeadChannels in(p.shape, tile.head, p.shape.channels), out(p.shape, tile.head, p.shape.channels_out);
  const uint64_t first_query = first_point(tile.batch, p.shape.query), first_key = first_point(tile.batch, p.shape.key);
  const LaneOwner owners[2] = {lane_owner(tile, grid, 0), lane_owner(tile, grid, 1)};
  const auto q = in.rows<storage_t>(p.q, first_query), k = in.rows<storage_t>(p.k, first_key);
  const auto dy = out.rows<storage_t>(p.dy, first_query), v = out.rows<storage_t>(p.v, first_key);
  const auto y = out.rows<storage_t>(p.y, first_query);
  typename Cores::OwnerPackets query_packets, dy_packets, y_packets;
  const auto head_row = [&](const LaneOwner& owner) { return (first_query + owner.point) * p.shape.heads + tile.head; };
  float2 statistics[2];
  Cores::read(query_packets, {q.row(owners[0].point), q.row(owners[1].point)}, q.channels);
  Cores::read(dy_packets, {dy.row(owners[0].point), dy.row(owners[1].point)}, dy.channels);
  Cores::read(y_packets, {y.row(owners[0].point), y.row(owners[1].point)}, y.channels);
#pragma unroll
  for (int i = 0; i < 2; ++i) statistics[i].x = p.lse[head_row(owners[i])];
  typename Cores::OwnerTile queries, dys;
  typename Cores::SumTile dq;
  float query_scales[2] = {}, dy_scales[2] = {};
  const PartnerSource source{p.query_table,         p.shape.key, grid.rows, p.quad_weights, exp2f(-p.weight_exponent),
                             !kCorrected<storage_t>};
  const auto begin = [&] {
    char* parked = shared_memory() + threadIdx.x / kWarp * (2 * Cores::kParkedBytes);
    Cores::arrange(queries, query_packets, q.channels, parked, query_scales);
    Cores::arrange(dys, dy_packets, dy.channels, parked + Cores::kParkedBytes, dy_scales);
    float deltas[2];
    Cores::dot(dy_packets, y_packets, deltas);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      query_scales[i] *= kLog2E;
      statistics[i] = {statistics[i].x * kLog2E - p.weight_exponent, quad_sum(deltas[i])};
      if (!kCorrected<storage_t> && owners[i].exists && lane_index() % 4 == 0 && tile.share == 0)
        query_statistics(p)[head_row(owners[i])] = statistics[i];
    }
  };
  WeightSums sums[2];
  SumScales<Cores::kScaled> dq_scales;
  visit_partners<Tile::kGroups>(source, tile, Cores::first_column(), begin, [&]<int kCount>(const Step& step) {
    const float weight = step.weight;
    const ColumnMask& mask = step.mask;
    typename Cores::template PartnerRows<kCount> key_rows, value_rows;
    typename Cores::template PartnerTile<kCount> keys, values;
    Cores::load(key_rows, [&](int column) { return k.row(step.point(column)); }, k.channels);
    Cores::load(value_rows, [&](int column) { return v.row(step.point(column)); }, v.channels);
    float s[kCount][4] = {}, ds[kCount][4] = {}, key_scales[kCount][2] = {}, value_scales[kCount][2] = {};
    Cores::split(keys, key_rows, key_scales);
    Cores::scores(queries, keys, s);
    Cores::split(values, value_rows, value_scales);
    Cores::scores(dys, values, ds);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float unit = Cores::kScaled ? query_scales[e / 2] * key_scales[i][e % 2] : kLog2E;
        const float dy_unit = Cores::kScaled ? dy_scales[e / 2] * value_scales[i][e % 2] : 1.0f;
        // float32 multiplies by the weight: the sum with its logarithm would be rounded once more
        const float exponent = s[i][e] * unit + ((kCorrected<storage_t> ? 0.0f : weight) - statistics[e / 2].x);
        const bool held = mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2);
        const float weighted = (kCorrected<storage_t> ? weight : 1.0f) * exp2_approximate(exponent);
        const float probability = held ? weighted : 0.0f;
        ds[i][e] = probability * (ds[i][e] * dy_unit - statistics[e / 2].y);
        if constexpr (kCorrected<storage_t>) sums[e / 2].add(probability, ds[i][e]);
      }
    dq_scales.apply(ds, key_scales, dq);
    Cores::accumulate(dq, ds, keys);
  });
  dq_scales.remove(dq);
  const auto merged = [&](const float (&others)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i].add(others[i], others[2 + i]);
    return float2{1.0f, 1.0f};
  };
  const float more[4] = {sums[0].probability, sums[1].probability, sums[0].gradient, sums[1].gradient};
  if (!merge_shares(tile, shared_memory(), dq, more, merged)) return;
  const LaneOwner written[2] = {lane_owner(tile.again(), grid, 0), lane_owner(tile.again(), grid, 1)};
  const auto dq_channels = in.rows<storage_t>(p.dq, first_query);
  storage_t* dq_rows[2];
  float factors[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    dq_rows[i] = written[i].exists && p.dq ? dq_channels.row(written[i].point) : nullptr;
    if constexpr (kCorrected<storage_t>) {
      const WeightSums all{quad_sum(sums[i].probability), quad_sum(sums[i].gradient)};
      factors[i] = all.factor();
      if (written[i].exists && lane_index() % 4 == 0)
        query_statistics(p)[head_row(written[i])] = all.corrected(statistics[i]);
    }
  }
  Cores::store(dq, factors, dq_rows, in.count);
#endif
}

// What a lane's two keys are weighted by: every p, as a logarithm to base 2, and the sums. float32 multiplies the sums;
// half types multiply every p, since sums without the weight could be beyond float16.
template <typename storage_t>
struct KeyWeights {
  float logarithms[2];
  float factors[2];

  __device__ void read(const BackwardParams& p, const LaneOwner (&owners)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) factors[i] = p.quad_weights[owners[i].lat];
  }
  __device__ void arrange(const BackwardParams& p) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float weight = factors[i] * exp2f(-p.weight_exponent);
      logarithms[i] = kCorrected<storage_t> ? 0.0f : log2f(weight);
      factors[i] = kCorrected<storage_t> ? weight : 1.0f;
    }
  }
};

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_key_tile(const __grid_constant__ BackwardParams p, const __grid_constant__ TileGrid grid) {
#if S2ATTN_TILES
  using Cores = BackwardCores<storage_t, Tile::kChannels>;
  const auto tile = find_owners<Tile::kOctets>(grid);
  if (tile.column >= grid.columns) return;
  const HeadChannels in(p.shape, tile.head, p.shape.channels), out(p.shape, tile.head, p.shape.channels_out);
  const uint64_t first_query = first_point(tile.batch, p.shape.query), first_key = first_point(tile.batch, p.shape.key);
  const LaneOwner owners[2] = {lane_owner(tile, grid, 0), lane_owner(tile, grid, 1)};
  const auto q = in.rows<storage_t>(p.q, first_query), k = in.rows<storage_t>(p.k, first_key);
  const auto dy = out.rows<storage_t>(p.dy, first_query), v = out.rows<storage_t>(p.v, first_key);
  typename Cores::OwnerPackets key_packets, value_packets;
  KeyWeights<storage_t> weights;
  Cores::read(key_packets, {k.row(owners[0].point), k.row(owners[1].point)}, k.channels);
  Cores::read(value_packets, {v.row(owners[0].point), v.row(owners[1].point)}, v.channels);
  weights.read(p, owners);
  typename Cores::OwnerTile keys, values;
  typename Cores::SumTile dk, dv;
  float key_scales[2] = {}, value_scales[2] = {};
  const float2* statistics_of_head = query_statistics(p) + (first_query * p.shape.heads + tile.head);
  const PartnerSource source{p.key_table, p.shape.query, grid.rows, nullptr, 1.0f, true};
  const auto begin = [&] {
    char* parked = shared_memory() + threadIdx.x / kWarp * (2 * Cores::kParkedBytes);
    Cores::arrange(keys, key_packets, k.channels, parked, key_scales);
    Cores::arrange(values, value_packets, v.channels, parked + Cores::kParkedBytes, value_scales);
#pragma unroll
    for (float& scale : key_scales) scale *= kLog2E;
    weights.arrange(p);
    wait_for_primary();
  };
  SumScales<Cores::kScaled> dk_scales, dv_scales;
  visit_partners<Tile::kGroups>(source, tile, Cores::first_column(), begin, [&]<int kCount>(const Step& step) {
    typename Cores::template PartnerRows<kCount> q_rows, dy_rows;
    typename Cores::template PartnerTile<kCount> queries, dys;
    float2 statistics[kCount][2];
    Cores::load(q_rows, [&](int column) { return q.row(step.point(column)); }, q.channels);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        statistics[i][e] =
            statistics_of_head[step.point(i * kGroupColumns + Cores::first_column() + Cores::kColumnStep * e) *
                               uint64_t{static_cast<uint32_t>(p.shape.heads)}];
    Cores::load(dy_rows, [&](int column) { return dy.row(step.point(column)); }, dy.channels);
    float probabilities[kCount][4] = {}, ds[kCount][4] = {}, query_scales[kCount][2] = {}, dy_scales[kCount][2] = {};
    Cores::split(queries, q_rows, query_scales);
    Cores::scores(keys, queries, probabilities);
    Cores::split(dys, dy_rows, dy_scales);
    Cores::scores(values, dys, ds);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float unit = Cores::kScaled ? key_scales[e / 2] * query_scales[i][e % 2] : kLog2E;
        const float dy_unit = Cores::kScaled ? value_scales[e / 2] * dy_scales[i][e % 2] : 1.0f;
        const float exponent = probabilities[i][e] * unit + (weights.logarithms[e / 2] - statistics[i][e % 2].x);
        const bool held = step.mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2);
        probabilities[i][e] = held ? exp2_approximate(exponent) : 0.0f;
        ds[i][e] = probabilities[i][e] * (ds[i][e] * dy_unit - statistics[i][e % 2].y);
      }
    if (p.dv) {
      dv_scales.apply(probabilities, dy_scales, dv);
      Cores::accumulate(dv, probabilities, dys);
    }
    if (!p.dk) return;
    dk_scales.apply(ds, query_scales, dk);
    Cores::accumulate(dk, ds, queries);
  });
  dk_scales.remove(dk);
  dv_scales.remove(dv);
  const LaneOwner written[2] = {lane_owner(tile.again(), grid, 0), lane_owner(tile.again(), grid, 1)};
  const auto store = [&](const auto& sums, void* tensor, const HeadChannels& channels) {
    const auto gradient = channels.rows<storage_t>(tensor, first_key);
    storage_t* rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) rows[i] = written[i].exists && tensor ? gradient.row(written[i].point) : nullptr;
    Cores::store(sums, weights.factors, rows, channels.count);
  };
  if (merge_shares(tile, shared_memory(), dk)) store(dk, p.dk, in);
  if (merge_shares(tile, shared_memory(), dv)) store(dv, p.dv, out);
#endif
}

}  // namespace s2attn::cuda
