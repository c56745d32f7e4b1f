// What is summed across the channels of a vector.
#pragma once

#include "storage.h"
#include "vectors.h"

namespace s2attn::cpu {

inline Quad sum_of_quads(Quad a) { return a; }

inline Quad sum_of_quads(float __attribute__((vector_size(32))) a) {
  return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
}

inline Quad sum_of_quads(float __attribute__((vector_size(64))) a) {
  return sum_of_quads(__builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15));
}

// The sums of four vectors: each is folded to a quad, and the quads are added up as the columns of a matrix.
inline Quad sums_of_four(const Channels* vectors) {
  const Quad a = sum_of_quads(vectors[0]), b = sum_of_quads(vectors[1]);
  const Quad c = sum_of_quads(vectors[2]), d = sum_of_quads(vectors[3]);
  const Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

}  // namespace s2attn::cpu
