// Transposes a matrix, and converts it on the way from one storage type to another.
#pragma once

#include <cstdint>

#include "storage.h"

namespace s2attn::cpu {

// target[j * target_stride + i] = source[i * source_stride + j], i and j = 0 .. 3.
template <typename source_t, typename target_t>
void transpose_quads(const source_t* source, int64_t source_stride, target_t* target, int64_t target_stride) {
  const Quad a = load_quad(source), b = load_quad(source + source_stride);
  const Quad c = load_quad(source + 2 * source_stride), d = load_quad(source + 3 * source_stride);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store_quad(target, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store_quad(target + target_stride, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store_quad(target + 2 * target_stride, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  store_quad(target + 3 * target_stride, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

// The rows x columns matrix at source, transposed to target.
template <typename source_t, typename target_t>
void transpose(const source_t* source, int64_t source_stride, target_t* target, int64_t target_stride, int64_t rows,
               int64_t columns) {
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t i = 0; i < whole_rows; i += 4)
    for (int64_t j = 0; j < whole_columns; j += 4)
      transpose_quads(source + i * source_stride + j, source_stride, target + j * target_stride + i, target_stride);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      store_one(target + j * target_stride + i, load_one(source + i * source_stride + j));
}

}  // namespace s2attn::cpu
