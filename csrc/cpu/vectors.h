// Sixteen neighboring channels of any storage type, as float32 lanes.
#pragma once

#include "lanes.h"
#include "storage.h"

namespace s2attn::cpu {

using LaneBits = uint32_t __attribute__((vector_size(kLaneBytes)));
using LaneHalves = uint16_t __attribute__((vector_size(kLaneBytes / 2)));

inline Lanes load_lanes(const float* source) { return load(source); }

template <typename storage_t>
Lanes load_lanes(const storage_t* source) {
  LaneHalves halves;
  std::memcpy(&halves, source, sizeof halves);
  return widened<Lanes>(__builtin_convertvector(halves, LaneBits), storage_t{});
}

inline void store_lanes(float* target, Lanes lanes) { std::memcpy(target, &lanes, sizeof lanes); }

template <typename storage_t>
void store_lanes(storage_t* target, Lanes lanes) {
  const LaneHalves halves = __builtin_convertvector(narrowed<LaneBits>(lanes, storage_t{}), LaneHalves);
  std::memcpy(target, &halves, sizeof halves);
}

}  // namespace s2attn::cpu
