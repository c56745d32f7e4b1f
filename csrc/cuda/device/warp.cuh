// Lanes of a warp in groups: who is who, and sums within a group.
#pragma once

namespace s2attn::cuda {

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;

__device__ inline int lane_index() { return threadIdx.x % kWarp; }

// Sum over the lanes of a group, the same on each of them. Groups of a warp may be in different iterations.
template <int kGroup>
__device__ float group_sum(float value) {
  const int first = lane_index() / kGroup * kGroup;
  const unsigned mask = kGroup == kWarp ? kFullMask : ((1u << (kGroup % kWarp)) - 1u) << first;
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset);
  return value;
}

}  // namespace s2attn::cuda
