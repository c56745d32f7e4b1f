// Computes: y = sum_i w_i exp(q . k_i) v_i / sum_i w_i exp(q . k_i) and lse = log sum_i w_i exp(q . k_i) over the
//   partners i of each query; without partners y = 0 and lse = -inf.
// Layout: NHWC, contiguous; heads packed in the channels.
// Mapping: one warp per query and head; its groups of lanes share out the partners, each with an online softmax of its
//   own, merged at the end.
// Requires: Row fits both channel counts (policy.h); for SharedRow, channels + channels_out floats of shared memory per
//   warp.
// Numerics: arithmetic in float32 for every storage type; deterministic: partners are shared out by their number.
#pragma once

#include <cmath>

#include "../device/owners.cuh"
#include "../device/partners.cuh"
#include "../device/rows.cuh"
#include "launch_bounds.cuh"

namespace s2attn::cuda {

template <typename Row>
struct OnlineSoftmax {
  Row sums;
  float maximum = -INFINITY;
  float normalizer = 0.0f;

  __device__ void raise(float maximum_of_batch) {
    const float raised = fmaxf(maximum, maximum_of_batch);
    if (raised == maximum) return;
    const float factor = expf(maximum - raised);
    normalizer *= factor;
    sums.scale(factor);
    maximum = raised;
  }

  __device__ void merge_groups() {
#pragma unroll
    for (int offset = Row::kGroup; offset < kWarp; offset *= 2) {
      const float other_maximum = __shfl_xor_sync(kFullMask, maximum, offset);
      const float other_normalizer = __shfl_xor_sync(kFullMask, normalizer, offset);
      const float merged = fmaxf(maximum, other_maximum);
      // a group without partners has the maximum -inf, and nothing to give
      const float own = maximum == -INFINITY ? 0.0f : expf(maximum - merged);
      const float other = other_maximum == -INFINITY ? 0.0f : expf(other_maximum - merged);
      normalizer = normalizer * own + other_normalizer * other;
      sums.merge(offset, own, other);
      maximum = merged;
    }
  }
};

template <typename storage_t, typename Row>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor) forward_gather(ForwardParams p) {
  Owner owner;
  if (!find_owner(p.shape, p.shape.query, owner)) return;
  constexpr int kGroups = kWarp / Row::kGroup;
  const int64_t features = int64_t{p.shape.heads} * p.shape.channels;
  const int64_t features_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const auto* q = static_cast<const storage_t*>(p.q) + owner.point * features + int64_t{owner.head} * p.shape.channels;
  const auto* k = static_cast<const storage_t*>(p.k) + int64_t{owner.head} * p.shape.channels;
  const auto* v = static_cast<const storage_t*>(p.v) + int64_t{owner.head} * p.shape.channels_out;
  auto* y = static_cast<storage_t*>(p.y) + owner.point * features_out + int64_t{owner.head} * p.shape.channels_out;

  float* memory = warp_memory(forward_floats_per_warp(p.shape));
  Row query(p.shape.channels, memory);
  query.load(q);
  OnlineSoftmax<Row> softmax{Row(p.shape.channels_out, memory)};
  softmax.sums.clear();
  PartnerCursor cursor(p.query_table, p.shape.key, owner, lane_index() / Row::kGroup, kGroups);
  while (!cursor.done()) {
    Partner partners[kBatch];
    float scores[kBatch];
    float maximum = -INFINITY;
    int count = 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (cursor.done()) break;
      partners[i] = cursor.next();
      scores[i] = query.dot(k + partners[i].point * features);
      count = i + 1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= count) break;
      scores[i] = group_sum<Row::kGroup>(scores[i]);
      maximum = fmaxf(maximum, scores[i]);
    }
    softmax.raise(maximum);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= count) break;
      const float weight = p.quad_weights[partners[i].lat] * expf(scores[i] - softmax.maximum);
      softmax.normalizer += weight;
      softmax.sums.add(weight, v + partners[i].point * features_out);
    }
  }
  __syncwarp();
  softmax.merge_groups();
  const bool empty = softmax.maximum == -INFINITY && softmax.normalizer == 0.0f;
  softmax.sums.store(empty ? 0.0f : 1.0f / softmax.normalizer, y);
  if (lane_index() == 0)
    p.lse[owner.point * p.shape.heads + owner.head] = empty ? -INFINITY : softmax.maximum + logf(softmax.normalizer);
}

}  // namespace s2attn::cuda
