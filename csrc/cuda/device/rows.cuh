// The channels of an owner and head, spread over the lanes of a group: values to multiply with, or sums.
//
// Two forms with one interface. RegisterRow holds kChunks * kVector channels per lane; SharedRow takes any number.
#pragma once

#include <cstdint>

#include "storage.cuh"
#include "warp.cuh"

namespace s2attn::cuda {

template <int kVector, int kGroup_, int kChunks>
class RegisterRow {
 public:
  static constexpr int kGroup = kGroup_;

  __device__ RegisterRow(int channels, float*&) : channels_(channels) {}

  __device__ void clear() {
    for_each_chunk([](float(&values)[kVector], int) {
#pragma unroll
      for (float& value : values) value = 0.0f;
    });
  }

  template <typename storage_t>
  __device__ void load(const storage_t* source) {
    clear();
    for_each_chunk([&](float(&values)[kVector], int c) { load_packet<kVector>(source + c, values); });
  }

  // This lane's share of the product with a partner's channels.
  template <typename storage_t>
  __device__ float dot(const storage_t* partner) {
    float sum = 0.0f;
    for_each_chunk([&](float(&values)[kVector], int c) {
      float other[kVector];
      load_packet<kVector>(partner + c, other);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum += values[i] * other[i];
    });
    return sum;
  }

  template <typename storage_t>
  __device__ void add(float factor, const storage_t* partner) {
    for_each_chunk([&](float(&values)[kVector], int c) {
      float other[kVector];
      load_packet<kVector>(partner + c, other);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] += factor * other[i];
    });
  }

  __device__ void scale(float factor) {
    for_each_chunk([&](float(&values)[kVector], int) {
#pragma unroll
      for (float& value : values) value *= factor;
    });
  }

  // Adds the row of the group at the other side of lane ^ offset. All lanes of the warp take part.
  __device__ void merge(int offset, float own_factor, float other_factor) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
      for (float& value : values_[chunk])
        value = value * own_factor + __shfl_xor_sync(kFullMask, value, offset) * other_factor;
  }

  template <typename storage_t>
  __device__ void store(float factor, storage_t* target) {
    if (lane_index() >= kGroup) return;
    for_each_chunk([&](float(&values)[kVector], int c) { store_packet<kVector>(values, factor, target + c); });
  }

 private:
  template <typename Visit>
  __device__ void for_each_chunk(Visit visit) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int c = (chunk * kGroup + lane_index() % kGroup) * kVector;
      if (c < channels_) visit(values_[chunk], c);
    }
  }

  int channels_;
  float values_[kChunks][kVector] = {};
};

class SharedRow {
 public:
  static constexpr int kGroup = kWarp;

  // Takes its place from the warp's shared memory.
  __device__ SharedRow(int channels, float*& memory) : channels_(channels), values_(memory) { memory += channels; }

  __device__ void clear() {
    for (int c = lane_index(); c < channels_; c += kWarp) values_[c] = 0.0f;
  }

  template <typename storage_t>
  __device__ void load(const storage_t* source) {
    for (int c = lane_index(); c < channels_; c += kWarp) values_[c] = to_float(source[c]);
  }

  template <typename storage_t>
  __device__ float dot(const storage_t* partner) {
    float sum = 0.0f;
    for (int c = lane_index(); c < channels_; c += kWarp) sum += values_[c] * to_float(partner[c]);
    return sum;
  }

  template <typename storage_t>
  __device__ void add(float factor, const storage_t* partner) {
    for (int c = lane_index(); c < channels_; c += kWarp) values_[c] += factor * to_float(partner[c]);
  }

  __device__ void scale(float factor) {
    for (int c = lane_index(); c < channels_; c += kWarp) values_[c] *= factor;
  }

  __device__ void merge(int, float, float) {}  // one group: nothing to merge

  template <typename storage_t>
  __device__ void store(float factor, storage_t* target) {
    for (int c = lane_index(); c < channels_; c += kWarp) target[c] = from_float<storage_t>(values_[c] * factor);
  }

 private:
  int channels_;
  float* values_;  // each element is only ever touched by one lane: no synchronization
};

// Adds the rows of all groups of the warp.
template <typename Row>
__device__ void merge_groups(Row& row) {
#pragma unroll
  for (int offset = Row::kGroup; offset < kWarp; offset *= 2) row.merge(offset, 1.0f, 1.0f);
}

// The shared memory of this warp.
__device__ inline float* warp_memory(int floats_per_warp) {
  extern __shared__ float memory[];
  return memory + threadIdx.x / kWarp * floats_per_warp;
}

}  // namespace s2attn::cuda
