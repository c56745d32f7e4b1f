// Computes: what forward_gather computes, in two passes over the partners: the first for the maximum of the scores, the
//   second for the sums relative to it. Scores are computed twice; nothing is ever rescaled.
// Layout, Requires: as forward_gather.
// Mapping: one warp per query and head; its groups of lanes share out the partners. forward_maximum leaves the maximum
//   in lse, where forward_accumulate finds it and puts the log-sum-exp instead.
// Numerics: float32. Group g of n sums partners g, g + n, g + 2n, ... in the order of the arcs; the groups' sums are
// added
//   pairwise. Deterministic.
#pragma once

#include <cmath>

#include "../device/owners.cuh"
#include "../device/partners.cuh"
#include "../device/rows.cuh"
#include "launch_bounds.cuh"

namespace s2attn::cuda {

// The scores of one query with its keys, as often as they are asked for.
template <typename storage_t, typename Row>
struct QueryScores {
  const void* q;
  const void* k;
  const Shape& shape;
  const GatherTable& table;
  const Owner& owner;

  __device__ void load(Row& query) const {
    query.load(static_cast<const storage_t*>(q) + (owner.point * shape.heads + owner.head) * shape.channels);
  }

  // Visits this group's share of the keys with their scores, two at a time so that their loads overlap.
  template <typename Visit>
  __device__ void visit(Row& query, const Visit& visitor) const {
    const int64_t features = int64_t{shape.heads} * shape.channels;
    const auto* keys = static_cast<const storage_t*>(k) + int64_t{owner.head} * shape.channels;
    PartnerCursor cursor(table, shape.key, owner, lane_index() / Row::kGroup, kWarp / Row::kGroup);
    while (!cursor.done()) {
      const Partner first = cursor.next();
      const bool two = !cursor.done();
      const Partner second = two ? cursor.next() : first;
      const float first_share = query.dot(keys + first.point * features);
      const float second_share = query.dot(keys + second.point * features);
      visitor(first, group_sum<Row::kGroup>(first_share));
      const float second_score = group_sum<Row::kGroup>(second_share);
      if (two) visitor(second, second_score);
    }
  }

  __device__ float maximum(Row& query) const {
    float highest = -INFINITY;
    visit(query, [&](const Partner&, float score) { highest = fmaxf(highest, score); });
    __syncwarp();
#pragma unroll
    for (int offset = Row::kGroup; offset < kWarp; offset *= 2)
      highest = fmaxf(highest, __shfl_xor_sync(kFullMask, highest, offset));
    return highest;
  }
};

// Sum over the groups of a warp of what each of their lanes knows.
template <typename Row>
__device__ float sum_of_groups(float value) {
  __syncwarp();
#pragma unroll
  for (int offset = Row::kGroup; offset < kWarp; offset *= 2) value += __shfl_xor_sync(kFullMask, value, offset);
  return value;
}

template <typename storage_t, typename Row>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor) forward_maximum(ForwardParams p) {
  Owner owner;
  if (!find_owner(p.shape, p.shape.query, owner)) return;
  float* memory = warp_memory(forward_floats_per_warp(p.shape));
  Row query(p.shape.channels, memory);
  const QueryScores<storage_t, Row> scores{p.q, p.k, p.shape, p.query_table, owner};
  scores.load(query);
  const float maximum = scores.maximum(query);
  if (lane_index() == 0) p.lse[owner.point * p.shape.heads + owner.head] = maximum;
}

template <typename storage_t, typename Row>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor) forward_accumulate(ForwardParams p) {
  Owner owner;
  if (!find_owner(p.shape, p.shape.query, owner)) return;
  const int64_t row = owner.point * p.shape.heads + owner.head;
  const int64_t features_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const auto* v = static_cast<const storage_t*>(p.v) + int64_t{owner.head} * p.shape.channels_out;
  float* memory = warp_memory(forward_floats_per_warp(p.shape));
  Row query(p.shape.channels, memory), sums(p.shape.channels_out, memory);
  const QueryScores<storage_t, Row> scores{p.q, p.k, p.shape, p.query_table, owner};
  scores.load(query);
  sums.clear();
  const float maximum = p.lse[row];
  float normalizer = 0.0f;
  scores.visit(query, [&](const Partner& partner, float score) {
    const float weight = p.quad_weights[partner.lat] * expf(score - maximum);
    normalizer += weight;
    sums.add(weight, v + partner.point * features_out);
  });
  normalizer = sum_of_groups<Row>(normalizer);
  merge_groups(sums);
  const bool empty = maximum == -INFINITY && normalizer == 0.0f;
  sums.store(empty ? 0.0f : 1.0f / normalizer, static_cast<storage_t*>(p.y) + row * p.shape.channels_out);
  if (lane_index() == 0) p.lse[row] = empty ? -INFINITY : maximum + logf(normalizer);
}

}  // namespace s2attn::cuda
