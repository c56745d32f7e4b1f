// Computes: what forward_gather computes.
// Layout: NHWC, contiguous; heads packed in the channels; channels a multiple of 16 bytes, tensors aligned to 16 bytes.
// Mapping: a block of neighboring owners per batch and head, 16 queries per warp (device/windows.cuh).
// Requires: sm_80; channels and channels_out <= Tile::kChannels; points and bytes from one to the next below 2^31; 8
//   longitudes of keys; where octets are shared, kMergedBytes of dynamic shared memory for all warps but one.
// Numerics: products as device/tensor_cores.cuh states, everything else in float32. The maximum that scores are taken
//   relative to is raised only when a score exceeds it by 2^8: exp2 of less cannot overflow, and the quotient does not
//   change. Deterministic. A NaN or an infinity in k or v reaches all queries whose windows hold it.
#pragma once

#include <cmath>

#include "../device/windows.cuh"
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
  __device__ bool merge(char* memory) {
    return merge_shares<Owners>(memory, sums, {maximum[0], maximum[1], normalizer[0], normalizer[1]},
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

// Of one block.
template <typename Tile, typename storage_t, typename Owners>
__device__ void forward_of_tile(const ForwardParams& p, const Owners& tile) {
  using Cores = TensorCores<storage_t, Tile::kChannels>;
  const int64_t points[2] = {lane_owner(tile, p.query_table, p.shape.query, 0),
                             lane_owner(tile, p.query_table, p.shape.query, 1)};
  const int64_t pitch = int64_t{p.shape.heads} * p.shape.channels;
  const int64_t pitch_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const int64_t keys = tile.batch * p.shape.key.nlat * p.shape.key.nlon;
  const int64_t channel = int64_t{tile.head} * p.shape.channels,
                channel_out = int64_t{tile.head} * p.shape.channels_out;
  const auto* q = static_cast<const storage_t*>(p.q) + channel;
  auto* y = static_cast<storage_t*>(p.y) + channel_out;
  const storage_t* query_rows[2];
  storage_t* output_rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    query_rows[i] = points[i] < 0 ? nullptr : q + points[i] * pitch;
    output_rows[i] = points[i] < 0 ? nullptr : y + points[i] * pitch_out;
  }
  typename Cores::OwnerTile queries;
  Cores::load(queries, query_rows, p.shape.channels);
  TileSoftmax<Cores> softmax;
  const PartnerTensor<storage_t> k{static_cast<const storage_t*>(p.k) + keys * pitch + channel,
                                   static_cast<uint32_t>(pitch * sizeof(storage_t)), p.shape.channels};
  const PartnerTensor<storage_t> v{static_cast<const storage_t*>(p.v) + keys * pitch_out + channel_out,
                                   static_cast<uint32_t>(pitch_out * sizeof(storage_t)), p.shape.channels_out};
  const PartnerSource source{
      p.query_table, p.shape.key, table_rows(p.query_table, p.shape.query), p.quad_weights, exp2f(-p.weight_exponent),
      true};
  visit_partners<Tile::kGroups, Owners>(source, tile, Cores::first_column(), [&]<int kCount>(const Step& step) {
    typename Cores::template Factors<kCount> keys;
    typename Cores::template Addends<kCount> values;
    Cores::load(keys, [&](int column) { return k.row(step.point(column)); }, k.channels);
    Cores::load_addends(values, [&](int column) { return v.row(step.point(column)); }, v.channels);
    float s[kCount][4] = {};
    Cores::scores(queries, keys, s);
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
    if (points[i] >= 0 && lane_index() % 4 == 0)
      p.lse[points[i] * p.shape.heads + tile.head] =
          empty ? -INFINITY : (softmax.maximum[i] + log2f(normalizer) + p.weight_exponent) * kLn2;
  }
  Cores::store(softmax.sums, factors, output_rows, p.shape.channels_out);
}

template <typename Tile, typename storage_t>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    forward_tile(const __grid_constant__ ForwardParams p, uint32_t shared_ranks) {
#if S2ATTN_TILES
  with_owners<Tile::kOctets>(p.shape, p.query_table, p.shape.query, shared_ranks,
                             [&](const auto& tile) { forward_of_tile<Tile, storage_t>(p, tile); });
#endif
}

}  // namespace s2attn::cuda
