// Sixteen floats side by side, by the compiler's vector extension: one register with AVX-512, two with AVX2, four
// with SSE or NEON. Lanes are neighboring longitudes, never channels, so nothing is ever summed across lanes.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace s2attn::cpu {

constexpr int kLanes = 16;
constexpr int kLaneBytes = kLanes * sizeof(float);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Lanes = float __attribute__((vector_size(kLaneBytes)));
using IntLanes = int32_t __attribute__((vector_size(kLaneBytes)));
using Quad = float __attribute__((vector_size(16)));

inline Lanes splat(float value) { return Lanes{} + value; }

inline Lanes load(const float* source) {
  Lanes lanes;
  std::memcpy(&lanes, source, sizeof lanes);
  return lanes;
}

inline Lanes maximum(Lanes a, Lanes b) { return a < b ? b : a; }

inline bool any(IntLanes mask) {
  int32_t found = 0;
  for (int i = 0; i < kLanes; ++i) found |= mask[i];
  return found != 0;
}

// e^x to about 2 ulp (Cephes' polynomial for expf after reduction by n ln 2). Exactly 0 below the normal range, NaN
// for NaN. Arguments above 88 are cut to 88: a difference of a score and a maximum or log-sum-exp never gets there.
inline Lanes exponential(Lanes x) {
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the mantissa
  const IntLanes vanishes = x < -87.0f;
  const Lanes bounded = vanishes ? splat(-87.0f) : (x > 88.0f ? splat(88.0f) : x);
  const Lanes shifted = bounded * 1.44269504088896341f + kRoundToInteger;
  const Lanes n = shifted - kRoundToInteger;
  const Lanes r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Lanes result = (Lanes)((IntLanes)p + ((IntLanes)shifted << 23));
  return vanishes ? Lanes{} : result;
}

inline Quad load_quad(const float* source) {
  Quad quad;
  std::memcpy(&quad, source, sizeof quad);
  return quad;
}

inline void store_quad(float* target, Quad quad) { std::memcpy(target, &quad, sizeof quad); }

// target[j * target_stride + i] = source[i * source_stride + j], i and j = 0 .. 3.
inline void transpose_quads(const float* source, int64_t source_stride, float* target, int64_t target_stride) {
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
inline void transpose(const float* source, int64_t source_stride, float* target, int64_t target_stride, int64_t rows,
                      int64_t columns) {
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t i = 0; i < whole_rows; i += 4)
    for (int64_t j = 0; j < whole_columns; j += 4)
      transpose_quads(source + i * source_stride + j, source_stride, target + j * target_stride + i, target_stride);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      target[j * target_stride + i] = source[i * source_stride + j];
}

}  // namespace s2attn::cpu
