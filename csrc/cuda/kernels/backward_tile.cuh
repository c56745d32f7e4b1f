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
  using Layout = typename Tile::Layout;
  using Cores = TensorCores<storage_t, Tile::kChannels>;
  extern __shared__ __align__(16) char shared[];
  const StageMemory<Layout, storage_t, Tile::kChannels, false> memory{shared};
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
  const auto pitch_bytes = static_cast<uint32_t>(pitch * sizeof(storage_t));
  const auto pitch_bytes_out = static_cast<uint32_t>(pitch_out * sizeof(storage_t));
  const PartnerTensors<storage_t> partners{
      {{static_cast<const storage_t*>(p.k) + keys * pitch + channel, pitch_bytes, p.shape.channels},
       {static_cast<const storage_t*>(p.v) + keys * pitch_out + channel_out, pitch_bytes_out, p.shape.channels_out}},
      nullptr,
      0};
  const StripSource source{p.query_table,
                           p.shape.key,
                           table_rows(p.query_table, p.shape.query),
                           p.quad_weights,
                           exp2f(-p.weight_exponent),
                           !kCorrected<storage_t>};
  WeightSums sums[2];
  stream_strips<Tile::kGroups>(
      memory, source, partners, tile, Cores::first_column(),
      [&]<int kCount>(const char* rows, int32_t column, const ColumnMask& mask, float weight) {
        float s[kCount][4] = {}, ds[kCount][4] = {};
        const char* k = rows + column * Cores::kRowBytes;
        Cores::scores(queries, k, s);
        Cores::scores(dy, k + memory.kTensorBytes, ds);
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
        Cores::accumulate(dq, ds, k);
      });
  const auto merged = [&](const float (&others)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i].add(others[i], others[2 + i]);
    return float2{1.0f, 1.0f};
  };
  const float more[4] = {sums[0].probability, sums[1].probability, sums[0].gradient, sums[1].gradient};
  if (!merge_shares<Owners>(shared, dq, more, merged)) return;
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
__global__ void __launch_bounds__(Tile::Layout::kThreads, Tile::kBlocks)
    backward_query_tile(const __grid_constant__ BackwardParams p, uint32_t sharing_ranks) {
#if S2ATTN_TILES
  with_owners<typename Tile::Layout>(p.shape, p.query_table, p.shape.query, sharing_ranks,
                                     [&](const auto& tile) { backward_of_query_tile<Tile, storage_t>(p, tile); });
#endif
}

// Of one block.
template <typename Tile, typename storage_t, typename Owners>
__device__ void backward_of_key_tile(const BackwardParams& p, const Owners& tile) {
  using Layout = typename Tile::Layout;
  using Cores = TensorCores<storage_t, Tile::kChannels>;
  extern __shared__ __align__(16) char shared[];
  const StageMemory<Layout, storage_t, Tile::kChannels, true> memory{shared};
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
  const auto pitch_bytes = static_cast<uint32_t>(pitch * sizeof(storage_t));
  const auto pitch_bytes_out = static_cast<uint32_t>(pitch_out * sizeof(storage_t));
  const PartnerTensors<storage_t> partners{
      {{static_cast<const storage_t*>(p.q) + queries * pitch + channel, pitch_bytes, p.shape.channels},
       {static_cast<const storage_t*>(p.dy) + queries * pitch_out + channel_out, pitch_bytes_out,
        p.shape.channels_out}},
      query_statistics(p) + queries * p.shape.heads + tile.head,
      p.shape.heads * static_cast<uint32_t>(sizeof(float2))};
  const StripSource source{p.key_table, p.shape.query, table_rows(p.key_table, p.shape.key), nullptr, 1.0f, true};
  stream_strips<Tile::kGroups>(
      memory, source, partners, tile, Cores::first_column(),
      [&]<int kCount>(const char* rows, int32_t column, const ColumnMask& mask, float) {
        float probabilities[kCount][4] = {};
        const char* q = rows + column * Cores::kRowBytes;
        const char* dy = q + memory.kTensorBytes;
        const auto* statistics =
            reinterpret_cast<const float2*>(rows + 2 * memory.kTensorBytes) + column + Cores::first_column();
        Cores::scores(keys, q, probabilities);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int c = i * kGroupColumns + Cores::kColumnStep * (e % 2);
            const float exponent = probabilities[i][e] * kLog2E + (weights[e / 2] - statistics[c].x);
            probabilities[i][e] = mask.holds(c, e / 2) ? exp2_approximate(exponent) : 0.0f;
          }
        if (p.dv) Cores::accumulate(dv, probabilities, dy);
        if (!p.dk) return;
        float ds[kCount][4] = {};
        Cores::scores(values, dy, ds);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            ds[i][e] =
                probabilities[i][e] * (ds[i][e] - statistics[i * kGroupColumns + Cores::kColumnStep * (e % 2)].y);
        Cores::accumulate(dk, ds, q);
      });
  if (merge_shares<Owners>(shared, dk)) Cores::store(dk, factors, dk_rows, p.shape.channels);
  if (merge_shares<Owners>(shared, dv)) Cores::store(dv, factors, dv_rows, p.shape.channels_out);
}

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::Layout::kThreads, Tile::kBlocks)
    backward_key_tile(const __grid_constant__ BackwardParams p, uint32_t sharing_ranks) {
#if S2ATTN_TILES
  with_owners<typename Tile::Layout>(p.shape, p.key_table, p.shape.key, sharing_ranks,
                                     [&](const auto& tile) { backward_of_key_tile<Tile, storage_t>(p, tile); });
#endif
}

}  // namespace s2attn::cuda
