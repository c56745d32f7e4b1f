// How gather kernels are launched, and what their accumulators take.
#pragma once

#include "../../problem.h"
#include "../device/warp.cuh"

namespace s2attn::cuda {

constexpr int kWarpsPerBlock = 4;
constexpr int kBlockThreads = kWarpsPerBlock * kWarp;
// 96 registers per thread. Left to itself, ptxas of CUDA 13.0 aims at 72 or 80 and spills 4 to 16 bytes (sm_90).
constexpr int kBlocksPerMultiprocessor = 5;
// Partners in flight per group: their loads overlap.
constexpr int kBatch = 2;

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Of dynamic shared memory, where rows lie there.
__host__ __device__ inline int forward_floats_per_warp(const Shape& shape) {
  return shape.channels + shape.channels_out;
}
__host__ __device__ inline int backward_floats_per_warp(const Shape& shape) {
  return 2 * (shape.channels + shape.channels_out);
}

}  // namespace s2attn::cuda
