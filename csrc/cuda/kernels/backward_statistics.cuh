// Computes: per query and head (lse * log2(e) - weight_exponent, delta) with delta = dy . y, which all backward kernels
//   read. Tiles of query owners make them themselves (backward_tile.cuh, backward_pair.cuh).
//   backward_statistics takes lse as the forward saved it.
//   backward_statistics_two_pass finds it anew, in a pass for the maximum and one for the sum, and needs no saved one.
// Layout: NHWC, contiguous; heads packed in the channels.
// Mapping: eight lanes per query and head, whose elements lie one after the other; two_pass: one warp.
// Numerics: float32; deterministic. lse and y come rounded, and so would p and delta: alike for all keys of a query, so
//   that nothing averages out. float32 query owners therefore sum p and ds too, which should give 1 and 0, scale dq by
//   what they give and correct these statistics for the key owners, which run after them.
#pragma once

#include <cmath>
#include <type_traits>

#include "../device/storage.cuh"
#include "forward_two_pass.cuh"

namespace s2attn::cuda {

__device__ inline float2* query_statistics(const BackwardParams& p) { return reinterpret_cast<float2*>(p.workspace); }

// Half types round far more than that away.
template <typename storage_t>
constexpr bool kCorrected = std::is_same_v<storage_t, float>;

// Sums of a query's weights p and of their gradients ds.
struct WeightSums {
  float probability = 0.0f;
  float gradient = 0.0f;

  __device__ void add(float p, float ds) {
    probability += p;
    gradient += ds;
  }
  __device__ float factor() const { return probability == 0.0f ? 1.0f : 1.0f / probability; }
  __device__ float2 corrected(float2 statistics) const {
    if (probability == 0.0f) return statistics;
    return {statistics.x + log2f(probability), statistics.y + gradient / probability};
  }
};

constexpr int kDeltaLanes = 8;

// dy . y of a query and head, by a group of kLanes lanes; kVector elements at a time.
template <int kLanes, int kVector, typename storage_t>
__device__ float delta_of(const BackwardParams& p, int64_t row) {
  const auto* dy = static_cast<const storage_t*>(p.dy) + row * p.shape.channels_out;
  const auto* y = static_cast<const storage_t*>(p.y) + row * p.shape.channels_out;
  float sum = 0.0f;
  for (int c = lane_index() % kLanes * kVector; c < p.shape.channels_out; c += kLanes * kVector) {
    float a[kVector], b[kVector];
    load_packet(dy + c, a);
    load_packet(y + c, b);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += a[i] * b[i];
  }
  return group_sum<kLanes>(sum);
}

// kVector: of more than one element where all rows are whole packets, aligned as such.
template <typename storage_t, int kVector>
__global__ void __launch_bounds__(kBlockThreads) backward_statistics(BackwardParams p) {
  const int64_t row = (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) / kDeltaLanes;
  if (row >= p.shape.batch * p.shape.query.nlat * p.shape.query.nlon * p.shape.heads) return;
  const float delta = delta_of<kDeltaLanes, kVector, storage_t>(p, row);
  if (lane_index() % kDeltaLanes == 0) query_statistics(p)[row] = {p.lse[row] * kLog2E - p.weight_exponent, delta};
}

template <typename storage_t, typename Row>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor)
    backward_statistics_two_pass(BackwardParams p) {
  Owner owner;
  if (!find_owner(p.shape, p.shape.query, owner)) return;
  const int64_t row = owner.point * p.shape.heads + owner.head;
  const QueryScores<storage_t, Row> scores{p.q, p.k, p.shape, p.query_table, owner};
  float* memory = warp_memory(forward_floats_per_warp(p.shape));
  Row query(p.shape.channels, memory);
  scores.load(query);
  const float maximum = scores.maximum(query);
  float sum = 0.0f;
  scores.visit(
      query, [&](const Partner& partner, float score) { sum += p.quad_weights[partner.lat] * expf(score - maximum); });
  const float normalizer = sum_of_groups<Row>(sum);
  const float delta = delta_of<kWarp, 1, storage_t>(p, row);
  if (lane_index() == 0) query_statistics(p)[row] = {(maximum + logf(normalizer)) * kLog2E - p.weight_exponent, delta};
}

}  // namespace s2attn::cuda
