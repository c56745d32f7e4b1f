// Computes: what forward_gather computes.
// Layout: NHWC, contiguous; heads packed in the channels; channels a multiple of 16 bytes, tensors aligned to 16 bytes.
// Mapping: a block of neighboring owners per batch and head, 16 queries per warp (device/windows.cuh), or per pair of
//   warps: then each has half of the channels, of the products of queries and keys, whose sums they exchange and add
//   up, and of the values that it sums. That is half of the registers, and both have the same weights to the bit.
//   float32 queries lie split in shared memory, where their warp alone reads them: with them in registers two warps fit
//   where three do.
// Requires: sm_80; channels and channels_out <= Tile::kChannels; points and bytes from one to the next below 2^31; 8
//   longitudes of keys; ForwardLayout::kBytes of dynamic shared memory, or, where octets are shared, kMergedBytes for
//   all shares but one.
// Numerics: products as device/tensor_cores.cuh states, of float32 with the large ones of 32 channels added up by the
//   cores, everything else in float32. The maximum that scores are taken
//   relative to is raised only when a score exceeds it by 2^8: exp2 of less cannot overflow, and the quotient does not
//   change. Deterministic. A NaN or an infinity in k or v reaches all queries whose windows hold it.
#pragma once

#include <cmath>
#include <type_traits>

#include "../device/heads.cuh"
#include "../device/pairs.cuh"
#include "../device/windows.cuh"
#include "../policy.h"
#include "launch_bounds.cuh"

namespace s2attn::cuda {

constexpr float kNoMaximum = -1e30f;  // finite, so that no difference of maxima is NaN
constexpr float kMaximumSlack = 8.0f;

__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Sum, or maximum, over the four lanes that share an owner.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(kFullMask, value, 1);
  return value + __shfl_xor_sync(kFullMask, value, 2);
}
__device__ inline float quad_maximum(float value) {
  value = fmaxf(value, __shfl_xor_sync(kFullMask, value, 1));
  return fmaxf(value, __shfl_xor_sync(kFullMask, value, 2));
}

template <typename Cores>
struct TileSoftmax {
  typename Cores::SumTile sums;
  float maximum[2] = {kNoMaximum, kNoMaximum};  // base 2
  float normalizer[2] = {0.0f, 0.0f};           // this lane's columns only

  // Scores in, weights out. weight: log2 of the quadrature weight.
  template <int kGroups>
  __device__ void exponentiate(float (&s)[kGroups][4], const ColumnMask& mask, float weight) {
    float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!mask.holds(i * kGroupColumns + Cores::kColumnStep * (e % 2), e / 2)) s[i][e] = -INFINITY;
        highest[e / 2] = fmaxf(highest[e / 2], s[i][e]);
      }
    const bool raised = highest[0] * kLog2E + weight > maximum[0] + kMaximumSlack ||
                        highest[1] * kLog2E + weight > maximum[1] + kMaximumSlack;
    if (__any_sync(kFullMask, raised)) raise(highest, weight);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i][e] = exp2_approximate(s[i][e] * kLog2E + (weight - maximum[e / 2]));
        normalizer[e / 2] += s[i][e];
      }
  }

  // Adds what the other shares found of the same owners; false for all but the first.
  template <typename Owners>
  __device__ bool merge(const Owners& tile, char* memory) {
    return merge_shares(tile, memory, sums, {maximum[0], maximum[1], normalizer[0], normalizer[1]},
                        [this](const float (&others)[4]) {
                          float own[2], factors[2];
#pragma unroll
                          for (int i = 0; i < 2; ++i) {
                            const float raised = fmaxf(maximum[i], others[i]);
                            own[i] = exp2_approximate(maximum[i] - raised);
                            factors[i] = exp2_approximate(others[i] - raised);
                            normalizer[i] = normalizer[i] * own[i] + others[2 + i] * factors[i];
                            maximum[i] = raised;
                          }
                          sums.scale(own[0], own[1]);
                          return float2{factors[0], factors[1]};
                        });
  }

 private:
  __device__ void raise(const float (&highest)[2], float weight) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float raised = fmaxf(maximum[i], quad_maximum(highest[i]) * kLog2E + weight);
      factor[i] = exp2_approximate(maximum[i] - raised);
      normalizer[i] *= factor[i];
      maximum[i] = raised;
    }
    sums.scale(factor[0], factor[1]);
  }
};

__device__ inline char* shared_memory() {
  extern __shared__ __align__(16) char shared[];
  return shared;
}

// What a warp has of the channels, and the shared memory of a block: parked queries of every warp, then what its pairs
// exchange.
template <typename Tile, typename storage_t>
struct ForwardLayout {
  static constexpr int kChannels = Tile::kChannels / Tile::kRoles;
  using Cores = TensorCores<storage_t, kChannels>;
  using Exchange = PairExchange<Tile::kOctets, Tile::kGroups>;

  static constexpr int kExchange = Tile::kThreads / kWarp * Cores::kParkedBytes;  // where it is
  static constexpr int kBytes = kExchange + (Tile::kRoles == 2 ? Exchange::kBytes : 0);
  static constexpr int kMerged = kMergedBytes<kChannels>;  // of a warp
  static constexpr int kAtMost =
      shared_bytes({Tile::kChannels, Tile::kOctets, Tile::kGroups, Tile::kBlocks},
                   std::is_same_v<storage_t, float> ? Storage::float32 : Storage::float16, Pass::forward);
  static_assert(kBytes <= kAtMost && (Tile::kOctets - 1) * Tile::kRoles * kMerged <= kAtMost);
};

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    forward_tile(const __grid_constant__ ForwardParams p, const __grid_constant__ TileGrid grid) {
#if S2ATTN_TILES
  using Layout = ForwardLayout<Tile, storage_t>;
  using Cores = typename Layout::Cores;
  const auto tile = find_owners<Tile::kOctets, Tile::kRoles>(grid);
  if (tile.column >= grid.columns) return;
  const int role = tile.role();
  const auto channels_of_warp = [&](int32_t channels) {
    const HeadChannels all(p.shape, tile.head, channels);
    return Tile::kRoles == 1 ? all : all.part(role, Layout::kChannels);
  };
  const HeadChannels in = channels_of_warp(p.shape.channels), out = channels_of_warp(p.shape.channels_out);
  const uint64_t first_query = first_point(tile.batch, p.shape.query), first_key = first_point(tile.batch, p.shape.key);
  const LaneOwner owners[2] = {lane_owner(tile, grid, 0), lane_owner(tile, grid, 1)};
  const auto q = in.rows<storage_t>(p.q, first_query);
  const auto k = in.rows<storage_t>(p.k, first_key), v = out.rows<storage_t>(p.v, first_key);
  typename Cores::OwnerPackets packets;
  Cores::read(packets, {q.row(owners[0].point), q.row(owners[1].point)}, q.channels);
  typename Cores::OwnerTile queries;
  TileSoftmax<Cores> softmax;
  const PartnerSource source{p.query_table, p.shape.key, grid.rows, p.quad_weights, exp2f(-p.weight_exponent), true};
  typename Layout::Exchange exchange(shared_memory() + Layout::kExchange);
  const auto begin = [&] {
    float unscaled[2];
    Cores::arrange(queries, packets, q.channels, shared_memory() + threadIdx.x / kWarp * Cores::kParkedBytes, unscaled);
  };
  visit_partners<Tile::kGroups>(source, tile, Cores::first_column(), begin, [&]<int kCount>(const Step& step) {
    typename Cores::template Factors<kCount> keys;
    typename Cores::template Addends<kCount> values;
    Cores::load(keys, [&](int column) { return k.row(step.point(column)); }, k.channels);
    Cores::load_addends(values, [&](int column) { return v.row(step.point(column)); }, v.channels);
    float s[kCount][4] = {};
    Cores::template scores<2>(queries, keys, s);
    if constexpr (Tile::kRoles == 2) {
      float other[kCount][4];
      exchange.swap(role, s, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[i][e] += other[i][e];
    }
    softmax.exponentiate(s, step.mask, step.weight);
    Cores::accumulate(softmax.sums, s, values);
  });
  if (!softmax.merge(tile, shared_memory())) return;
  const LaneOwner written[2] = {lane_owner(tile.again(), grid, 0), lane_owner(tile.again(), grid, 1)};
  const auto y = out.rows<storage_t>(p.y, first_query);
  storage_t* output_rows[2];
  float factors[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    output_rows[i] = written[i].exists ? y.row(written[i].point) : nullptr;
    const float normalizer = quad_sum(softmax.normalizer[i]);
    const bool empty = normalizer == 0.0f;
    factors[i] = empty ? 0.0f : 1.0f / normalizer;
    if (written[i].exists && lane_index() % 4 == 0 && role == 0)
      p.lse[(first_query + written[i].point) * p.shape.heads + tile.head] =
          empty ? -INFINITY : (softmax.maximum[i] + log2f(normalizer) + p.weight_exponent) * kLn2;
  }
  Cores::store(softmax.sums, factors, output_rows, y.channels);
#endif
}

}  // namespace s2attn::cuda
