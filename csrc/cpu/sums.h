// What is summed or compared across lanes.
#pragma once

#include <algorithm>

#include "lanes.h"
#include "storage.h"

namespace s2attn::cpu {

using HalfLanes = float __attribute__((vector_size(kLaneBytes / 2)));

inline HalfLanes lower(Lanes a) { return __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7); }
inline HalfLanes upper(Lanes a) { return __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15); }
inline Quad lower(HalfLanes a) { return __builtin_shufflevector(a, a, 0, 1, 2, 3); }
inline Quad upper(HalfLanes a) { return __builtin_shufflevector(a, a, 4, 5, 6, 7); }

inline Quad sum_of_quads(Lanes a) {
  const HalfLanes half = lower(a) + upper(a);
  return lower(half) + upper(half);
}

// The sums of four vectors: each is folded to a quad, and the quads are added up as the columns of a matrix.
inline Quad sums_of_four(const Lanes* lanes) {
  const Quad a = sum_of_quads(lanes[0]), b = sum_of_quads(lanes[1]);
  const Quad c = sum_of_quads(lanes[2]), d = sum_of_quads(lanes[3]);
  const Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

inline Lanes joined(const Quad* quads) {
  const HalfLanes low = __builtin_shufflevector(quads[0], quads[1], 0, 1, 2, 3, 4, 5, 6, 7);
  const HalfLanes high = __builtin_shufflevector(quads[2], quads[3], 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

inline float sum(Lanes a) {
  const Quad quad = sum_of_quads(a);
  return (quad[0] + quad[1]) + (quad[2] + quad[3]);
}

inline float largest(Lanes a) {
  const HalfLanes low = lower(a), high = upper(a);
  const HalfLanes half = low < high ? high : low;
  const Quad x = lower(half), y = upper(half);
  const Quad quad = x < y ? y : x;
  return std::max(std::max(quad[0], quad[1]), std::max(quad[2], quad[3]));
}

}  // namespace s2attn::cpu
