// Computes: what backward_gather computes, of query and key owners each in a kernel of its own.
// Layout, Mapping, Requires: as forward_tile; backward_statistics runs before.
// Numerics: as forward_tile; weights p and their gradients ds are rounded to the storage type before they multiply
//   partners (float32: split, not rounded), so float16 loses gradients below 2^-24 unless the loss is scaled.
//   Deterministic: each owner sums its partners in one order.
#pragma once

#include "backward_statistics.cuh"
#include "forward_tile.cuh"

namespace s2attn::cuda {

// Of one block.
template <typename Tile, typename storage_t, typename Owners>
__device__ void backward_of_query_tile(const BackwardParams& p, const Owners& tile) {
  using Cores = TensorCores<storage_t, Tile::kChannels>;
  const int64_t points[2] = {lane_owner(tile, p.query_table, p.shape.query, 0),
                             lane_owner(tile, p.query_table, p.shape.query, 1)};
  const int64_t pitch = int64_t{p.shape.heads} * p.shape.channels;
  const int64_t pitch_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const int64_t keys = tile.batch * p.shape.key.nlat * p.shape.key.nlon;
  const int64_t channel = int64_t{tile.head} * p.shape.channels,
                channel_out = int64_t{tile.head} * p.shape.channels_out;
  const storage_t *query_rows[2], *dy_rows[2];
  storage_t* dq_rows[2];
  float2 statistics[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t point = points[i];
    query_rows[i] = point < 0 ? nullptr : static_cast<const storage_t*>(p.q) + point * pitch + channel;
    dy_rows[i] = point < 0 ? nullptr : static_cast<const storage_t*>(p.dy) + point * pitch_out + channel_out;
    dq_rows[i] = point < 0 || !p.dq ? nullptr : static_cast<storage_t*>(p.dq) + point * pitch + channel;
    statistics[i] = point < 0 ? float2{} : query_statistics(p)[point * p.shape.heads + tile.head];
  }
  typename Cores::OwnerTile queries, dy;
  Cores::load(queries, query_rows, p.shape.channels);
  Cores::load(dy, dy_rows, p.shape.channels_out);
  typename Cores::SumTile dq;
  const PartnerTensor<storage_t> k{static_cast<const storage_t*>(p.k) + keys * pitch + channel,
                                   static_cast<uint32_t>(pitch * sizeof(storage_t)), p.shape.channels};
  const PartnerTensor<storage_t> v{static_cast<const storage_t*>(p.v) + keys * pitch_out + channel_out,
                                   static_cast<uint32_t>(pitch_out * sizeof(storage_t)), p.shape.channels_out};
  const PartnerSource source{p.query_table,
                             p.shape.key,
                             table_rows(p.query_table, p.shape.query),
                             p.quad_weights,
                             exp2f(-p.weight_exponent),
                             !kCorrected<storage_t>};
  WeightSums sums[2];
  visit_partners<Tile::kGroups, Owners>(source, tile, Cores::first_column(), [&]<int kCount>(const Step& step) {
    const float weight = step.weight;
    const ColumnMask& mask = step.mask;
    const auto k_row = [&](int column) { return k.row(step.point(column)); };
    typename Cores::template Factors<kCount> keys, values;
    typename Cores::template Addends<kCount> addends;
    Cores::load(keys, k_row, k.channels);
    Cores::load(values, [&](int column) { return v.row(step.point(column)); }, v.channels);
    float s[kCount][4] = {}, ds[kCount][4] = {};
    Cores::scores(queries, keys, s);
    Cores::scores(dy, values, ds);
    Cores::reload_addends(addends, keys, k_row, k.channels);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // float32 multiplies by the weight: the sum with its logarithm would be rounded once more
        const float exponent = s[i][e] * kLog2E + ((kCorrected<storage_t> ? 0.0f : weight) - statistics[e / 2].x);
        const bool held = mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2);
        const float weighted = (kCorrected<storage_t> ? weight : 1.0f) * exp2_approximate(exponent);
        const float probability = held ? weighted : 0.0f;
        ds[i][e] = held ? probability * (ds[i][e] - statistics[e / 2].y) : 0.0f;
        if constexpr (kCorrected<storage_t>) sums[e / 2].add(probability, ds[i][e]);
      }
    Cores::accumulate(dq, ds, addends);
  });
  const auto merged = [&](const float (&others)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i].add(others[i], others[2 + i]);
    return float2{1.0f, 1.0f};
  };
  const float more[4] = {sums[0].probability, sums[1].probability, sums[0].gradient, sums[1].gradient};
  if (!merge_shares<Owners>(shared_memory(), dq, more, merged)) return;
  float factors[2] = {1.0f, 1.0f};
  if constexpr (kCorrected<storage_t>)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const WeightSums all{quad_sum(sums[i].probability), quad_sum(sums[i].gradient)};
      factors[i] = all.factor();
      if (points[i] >= 0 && lane_index() % 4 == 0)
        query_statistics(p)[points[i] * p.shape.heads + tile.head] = all.corrected(statistics[i]);
    }
  Cores::store(dq, factors, dq_rows, p.shape.channels);
}

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_query_tile(const __grid_constant__ BackwardParams p, uint32_t shared_ranks) {
#if S2ATTN_TILES
  with_owners<Tile::kOctets>(p.shape, p.query_table, p.shape.query, shared_ranks,
                             [&](const auto& tile) { backward_of_query_tile<Tile, storage_t>(p, tile); });
#endif
}

// Of one block.
template <typename Tile, typename storage_t, typename Owners>
__device__ void backward_of_key_tile(const BackwardParams& p, const Owners& tile) {
  using Cores = TensorCores<storage_t, Tile::kChannels>;
  const int64_t points[2] = {lane_owner(tile, p.key_table, p.shape.key, 0),
                             lane_owner(tile, p.key_table, p.shape.key, 1)};
  const int64_t pitch = int64_t{p.shape.heads} * p.shape.channels;
  const int64_t pitch_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const int64_t queries = tile.batch * p.shape.query.nlat * p.shape.query.nlon;
  const int64_t channel = int64_t{tile.head} * p.shape.channels,
                channel_out = int64_t{tile.head} * p.shape.channels_out;
  const storage_t *key_rows[2], *value_rows[2];
  storage_t *dk_rows[2], *dv_rows[2];
  float weights[2];  // of the owner: what the sums are multiplied by, and log2 of what every p is multiplied by
  float factors[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t point = points[i];
    key_rows[i] = point < 0 ? nullptr : static_cast<const storage_t*>(p.k) + point * pitch + channel;
    value_rows[i] = point < 0 ? nullptr : static_cast<const storage_t*>(p.v) + point * pitch_out + channel_out;
    dk_rows[i] = point < 0 || !p.dk ? nullptr : static_cast<storage_t*>(p.dk) + point * pitch + channel;
    dv_rows[i] = point < 0 || !p.dv ? nullptr : static_cast<storage_t*>(p.dv) + point * pitch_out + channel_out;
    const int32_t lat = (tile.row + i) / p.key_table.residues;
    const float weight = point < 0 ? 1.0f : p.quad_weights[lat] * exp2f(-p.weight_exponent);
    // half types multiply every p: sums without the weight could be beyond float16
    weights[i] = kCorrected<storage_t> ? 0.0f : log2f(weight);
    factors[i] = kCorrected<storage_t> ? weight : 1.0f;
  }
  typename Cores::OwnerTile keys, values;
  Cores::load(keys, key_rows, p.shape.channels);
  Cores::load(values, value_rows, p.shape.channels_out);
  typename Cores::SumTile dk, dv;
  const PartnerTensor<storage_t> q{static_cast<const storage_t*>(p.q) + queries * pitch + channel,
                                   static_cast<uint32_t>(pitch * sizeof(storage_t)), p.shape.channels};
  const PartnerTensor<storage_t> dy{static_cast<const storage_t*>(p.dy) + queries * pitch_out + channel_out,
                                    static_cast<uint32_t>(pitch_out * sizeof(storage_t)), p.shape.channels_out};
  const float2* query_statistics_of_head = query_statistics(p) + queries * p.shape.heads + tile.head;
  const PartnerSource source{p.key_table, p.shape.query, table_rows(p.key_table, p.shape.key), nullptr, 1.0f, true};
  visit_partners<Tile::kGroups, Owners>(source, tile, Cores::first_column(), [&]<int kCount>(const Step& step) {
    const auto q_row = [&](int column) { return q.row(step.point(column)); };
    const auto dy_row = [&](int column) { return dy.row(step.point(column)); };
    typename Cores::template Factors<kCount> q_factors, dy_factors;
    typename Cores::template Addends<kCount> q_addends, dy_addends;
    float2 statistics[kCount][2];
    Cores::load(q_factors, q_row, q.channels);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        statistics[i][e] = __ldg(query_statistics_of_head +
                                 step.point(i * kGroupColumns + Cores::first_column() + Cores::kColumnStep * e) *
                                     static_cast<uint64_t>(p.shape.heads));
    Cores::load(dy_factors, dy_row, dy.channels);
    float probabilities[kCount][4] = {}, ds[kCount][4] = {};
    Cores::scores(keys, q_factors, probabilities);
    Cores::scores(values, dy_factors, ds);
    Cores::reload_addends(dy_addends, dy_factors, dy_row, dy.channels);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float exponent = probabilities[i][e] * kLog2E + (weights[e / 2] - statistics[i][e % 2].x);
        const bool held = step.mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2);
        probabilities[i][e] = held ? exp2_approximate(exponent) : 0.0f;
        ds[i][e] = probabilities[i][e] * (ds[i][e] - statistics[i][e % 2].y);
      }
    if (p.dv) Cores::accumulate(dv, probabilities, dy_addends);
    if (!p.dk) return;
    Cores::reload_addends(q_addends, q_factors, q_row, q.channels);
    Cores::accumulate(dk, ds, q_addends);
  });
  if (merge_shares<Owners>(shared_memory(), dk)) Cores::store(dk, factors, dk_rows, p.shape.channels);
  if (merge_shares<Owners>(shared_memory(), dv)) Cores::store(dv, factors, dv_rows, p.shape.channels_out);
}

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    backward_key_tile(const __grid_constant__ BackwardParams p, uint32_t shared_ranks) {
#if S2ATTN_TILES
  with_owners<Tile::kOctets>(p.shape, p.key_table, p.shape.key, shared_ranks,
                             [&](const auto& tile) { backward_of_key_tile<Tile, storage_t>(p, tile); });
#endif
}

}  // namespace s2attn::cuda
