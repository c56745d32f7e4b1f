// Computes, with p_qk = w_k exp(q . k - lse_q), delta_q = dy_q . y_q and ds_qk = p_qk (dy_q . v_k - delta_q):
//   backward_query_gather: dq_q = sum_k ds_qk k_k
//   backward_key_gather: dk_k = sum_q ds_qk q_q and dv_k = sum_q p_qk dy_q, either alone where the other is not wanted
// Layout: NHWC, contiguous; heads packed in the channels.
// Mapping: one warp per owner (query or key) and head; its groups of lanes share out the partners, and add up at last.
// Requires: Row fits both channel counts (policy.h); for SharedRow, twice channels + channels_out floats of shared
//   memory per warp. backward_statistics, or its other form, runs before.
// Numerics: arithmetic in float32 for every storage type; no atomics: deterministic.
#pragma once

#include <cmath>

#include "backward_statistics.cuh"

namespace s2attn::cuda {

template <typename storage_t, typename Row>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor) backward_query_gather(BackwardParams p) {
  Owner owner;
  if (!find_owner(p.shape, p.shape.query, owner)) return;
  constexpr int kGroups = kWarp / Row::kGroup;
  const int64_t features = int64_t{p.shape.heads} * p.shape.channels;
  const int64_t features_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const int64_t offset = int64_t{owner.head} * p.shape.channels;
  const int64_t offset_out = int64_t{owner.head} * p.shape.channels_out;
  const auto* k = static_cast<const storage_t*>(p.k) + offset;
  const auto* v = static_cast<const storage_t*>(p.v) + offset_out;
  const int64_t row = owner.point * p.shape.heads + owner.head;
  const float2 statistics = query_statistics(p)[row];
  const float weight_scale = exp2f(-p.weight_exponent);

  float* memory = warp_memory(backward_floats_per_warp(p.shape));
  Row query(p.shape.channels, memory), dy(p.shape.channels_out, memory), dq(p.shape.channels, memory);
  query.load(static_cast<const storage_t*>(p.q) + owner.point * features + offset);
  dy.load(static_cast<const storage_t*>(p.dy) + owner.point * features_out + offset_out);
  dq.clear();
  WeightSums sums;
  PartnerCursor cursor(p.query_table, p.shape.key, owner, lane_index() / Row::kGroup, kGroups);
  while (!cursor.done()) {
    Partner partners[kBatch];
    float scores[kBatch], products[kBatch];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (cursor.done()) break;
      partners[i] = cursor.next();
      scores[i] = query.dot(k + partners[i].point * features);
      products[i] = dy.dot(v + partners[i].point * features_out);
      count = i + 1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= count) break;
      const float score = group_sum<Row::kGroup>(scores[i]) * kLog2E;
      const float probability = weight_scale * p.quad_weights[partners[i].lat] * exp2f(score - statistics.x);
      const float ds = probability * (group_sum<Row::kGroup>(products[i]) - statistics.y);
      dq.add(ds, k + partners[i].point * features);
      if constexpr (kCorrected<storage_t>) sums.add(probability, ds);
    }
  }
  __syncwarp();
  merge_groups(dq);
  float factor = 1.0f;
  if constexpr (kCorrected<storage_t>) {
    const WeightSums all{sum_of_groups<Row>(sums.probability), sum_of_groups<Row>(sums.gradient)};
    factor = all.factor();
    if (lane_index() == 0) query_statistics(p)[row] = all.corrected(statistics);
  }
  if (p.dq) dq.store(factor, static_cast<storage_t*>(p.dq) + owner.point * features + offset);
}

template <typename storage_t, typename Row>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor) backward_key_gather(BackwardParams p) {
  Owner owner;
  if (!find_owner(p.shape, p.shape.key, owner)) return;
  constexpr int kGroups = kWarp / Row::kGroup;
  const int64_t features = int64_t{p.shape.heads} * p.shape.channels;
  const int64_t features_out = int64_t{p.shape.heads} * p.shape.channels_out;
  const int64_t offset = int64_t{owner.head} * p.shape.channels;
  const int64_t offset_out = int64_t{owner.head} * p.shape.channels_out;
  const auto* q = static_cast<const storage_t*>(p.q) + offset;
  const auto* dy = static_cast<const storage_t*>(p.dy) + offset_out;
  const float quad_weight = p.quad_weights[owner.lat] * exp2f(-p.weight_exponent);

  float* memory = warp_memory(backward_floats_per_warp(p.shape));
  Row key(p.shape.channels, memory), value(p.shape.channels_out, memory);
  Row dk(p.shape.channels, memory), dv(p.shape.channels_out, memory);
  key.load(static_cast<const storage_t*>(p.k) + owner.point * features + offset);
  value.load(static_cast<const storage_t*>(p.v) + owner.point * features_out + offset_out);
  dk.clear();
  dv.clear();
  PartnerCursor cursor(p.key_table, p.shape.query, owner, lane_index() / Row::kGroup, kGroups);
  while (!cursor.done()) {
    Partner partners[kBatch];
    float scores[kBatch], products[kBatch];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (cursor.done()) break;
      partners[i] = cursor.next();
      scores[i] = key.dot(q + partners[i].point * features);
      products[i] = p.dk ? value.dot(dy + partners[i].point * features_out) : 0.0f;
      count = i + 1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= count) break;
      const float2 statistics = query_statistics(p)[partners[i].point * p.shape.heads + owner.head];
      const float probability = exp2f(group_sum<Row::kGroup>(scores[i]) * kLog2E - statistics.x);
      if (p.dv) dv.add(probability, dy + partners[i].point * features_out);
      if (!p.dk) continue;
      const float ds = probability * (group_sum<Row::kGroup>(products[i]) - statistics.y);
      dk.add(ds, q + partners[i].point * features);
    }
  }
  __syncwarp();
  merge_groups(dk);
  merge_groups(dv);
  if (p.dk) dk.store(quad_weight, static_cast<storage_t*>(p.dk) + owner.point * features + offset);
  if (p.dv) dv.store(quad_weight, static_cast<storage_t*>(p.dv) + owner.point * features_out + offset_out);
}

}  // namespace s2attn::cuda
