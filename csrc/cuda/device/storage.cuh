// Storage types: loads and stores of one or four elements, always computed with as float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace s2attn::cuda {

template <typename storage_t, int kVector>
struct alignas(sizeof(storage_t) * kVector) Packet {
  storage_t elements[kVector];
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename storage_t>
__device__ storage_t from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <int kVector, typename storage_t>
__device__ void load_packet(const storage_t* source, float (&target)[kVector]) {
  const auto packet = *reinterpret_cast<const Packet<storage_t, kVector>*>(source);
#pragma unroll
  for (int i = 0; i < kVector; ++i) target[i] = to_float(packet.elements[i]);
}

template <int kVector, typename storage_t>
__device__ void store_packet(const float (&source)[kVector], float factor, storage_t* target) {
  Packet<storage_t, kVector> packet;
#pragma unroll
  for (int i = 0; i < kVector; ++i) packet.elements[i] = from_float<storage_t>(source[i] * factor);
  *reinterpret_cast<Packet<storage_t, kVector>*>(target) = packet;
}

}  // namespace s2attn::cuda
