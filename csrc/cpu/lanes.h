// Sixteen floats side by side, by the compiler's vector extension: one register with AVX-512, two with AVX2, four
// with SSE or NEON. Lanes are neighboring longitudes: nothing is summed across lanes.
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

}  // namespace s2attn::cpu
