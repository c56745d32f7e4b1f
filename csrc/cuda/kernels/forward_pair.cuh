// Computes: what forward_tile computes, with a pair of warps for every 16 queries.
// Mapping: as forward_tile, but each warp of a pair has half of the channels, which is half of the registers: of the
//   products of queries and keys, whose sums the warps exchange and add up, and of the values that it sums.
// Layout, Requires: as forward_tile; ForwardPair::kBytes of dynamic shared memory, or what merge_shares needs.
// Numerics: as forward_tile; both warps have the same weights to the bit.
#pragma once

#include "../device/pairs.cuh"
#include "forward_tile.cuh"

namespace s2attn::cuda {

template <typename Tile, typename storage_t>
struct ForwardPair {
  static constexpr int kChannels = Tile::kChannels / 2;  // of a warp
  using Cores = TensorCores<storage_t, kChannels>;
  using Exchange = PairExchange<Tile::kOctets, 2, Tile::kGroups>;
  static constexpr int kBytes = Exchange::kBytes;
  static constexpr int kMerged = kMergedBytes<kChannels>;  // of a warp
};

// Of one block.
template <typename Tile, typename storage_t, typename Owners>
__device__ void forward_of_pair(const ForwardParams& p, const Owners& tile) {
  using Pair = ForwardPair<Tile, storage_t>;
  using Cores = typename Pair::Cores;
  const int role = Owners::role();
  const HeadChannels in = HeadChannels(p.shape, tile.head, p.shape.channels).part(role, Pair::kChannels);
  const HeadChannels out = HeadChannels(p.shape, tile.head, p.shape.channels_out).part(role, Pair::kChannels);
  const int64_t points[2] = {lane_owner(tile, p.query_table, p.shape.query, 0),
                             lane_owner(tile, p.query_table, p.shape.query, 1)};
  const int64_t keys = tile.batch * p.shape.key.nlat * p.shape.key.nlon;
  const storage_t* query_rows[2];
  storage_t* output_rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    query_rows[i] = in.row<storage_t>(p.q, points[i]);
    output_rows[i] = out.row<storage_t>(p.y, points[i]);
  }
  typename Cores::OwnerTile queries;
  Cores::load(queries, query_rows, in.count);
  TileSoftmax<Cores> softmax;
  const auto k = in.partners<storage_t>(p.k, keys);
  const auto v = out.partners<storage_t>(p.v, keys);
  const PartnerSource source{
      p.query_table, p.shape.key, table_rows(p.query_table, p.shape.query), p.quad_weights, exp2f(-p.weight_exponent),
      true};
  typename Pair::Exchange exchange(shared_memory());
  visit_partners<Tile::kGroups, Owners>(source, tile, Cores::first_column(), [&]<int kCount>(const Step& step) {
    typename Cores::template Factors<kCount> keys;
    typename Cores::template Addends<kCount> values;
    Cores::load(keys, [&](int column) { return k.row(step.point(column)); }, k.channels);
    Cores::load_addends(values, [&](int column) { return v.row(step.point(column)); }, v.channels);
    float s[kCount][4] = {}, other[kCount][4];
    Cores::scores(queries, keys, s);
    exchange.swap(role, s, other);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] += other[i][e];
    softmax.exponentiate(s, step.mask, step.weight);
    Cores::accumulate(softmax.sums, s, values);
  });
  if (!softmax.template merge<Owners>(shared_memory())) return;
  float factors[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float normalizer = quad_sum(softmax.normalizer[i]);
    const bool empty = normalizer == 0.0f;
    factors[i] = empty ? 0.0f : 1.0f / normalizer;
    if (points[i] >= 0 && lane_index() % 4 == 0 && role == 0)
      p.lse[points[i] * p.shape.heads + tile.head] =
          empty ? -INFINITY : (softmax.maximum[i] + log2f(normalizer) + p.weight_exponent) * kLn2;
  }
  Cores::store(softmax.sums, factors, output_rows, out.count);
}

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    forward_pair(const __grid_constant__ ForwardParams p, uint32_t shared_ranks) {
#if S2ATTN_TILES
  with_owners<Tile::kOctets, 2>(p.shape, p.query_table, p.shape.query, shared_ranks,
                                [&](const auto& tile) { forward_of_pair<Tile, storage_t>(p, tile); });
#endif
}

}  // namespace s2attn::cuda
