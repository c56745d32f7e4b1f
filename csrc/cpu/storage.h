// Storage types: loads and stores of one element or four, always computed with as float32, rounded to nearest even.
// Done on the bits: needs neither torch nor a compiler's own half types, and a thread that flushes subnormal floats
// still reads subnormal halves right.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "../problem.h"

namespace s2attn::cpu {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

using Quad = float __attribute__((vector_size(16)));
using QuadBits = uint32_t __attribute__((vector_size(16)));
using QuadHalves = uint16_t __attribute__((vector_size(8)));

// The following work on one element (Float = float, Bits = uint32_t) and on four (Quad, QuadBits) alike.

template <typename Float, typename Bits>
Float widened(Bits half, Float16) {
  const Bits sign = (half & 0x8000u) << 16;
  const Bits magnitude = (half & 0x7fffu) << 13;
  // 2^-14 (1 + mantissa), less 2^-14: exact, and no subnormal float on the way
  const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Float>(magnitude + (113u << 23)) - 0x1p-14f);
  const Bits finite = magnitude < (1u << 23) ? subnormal : magnitude + (112u << 23);
  return std::bit_cast<Float>(sign | (magnitude < (31u << 23) ? finite : magnitude + (224u << 23)));
}

template <typename Float, typename Bits>
Float widened(Bits half, BFloat16) {
  return std::bit_cast<Float>(half << 16);
}

template <typename Bits, typename Float>
Bits narrowed(Float value, Float16) {
  const Bits bits = std::bit_cast<Bits>(value);
  const Bits magnitude = bits & 0x7fffffffu;
  // at 0.5 the last place of a float is that of a subnormal half: the sum rounds there
  const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Float>(magnitude) + 0.5f) - (126u << 23);
  const Bits normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const Bits finite = magnitude < (113u << 23) ? subnormal : normal;
  const Bits beyond = magnitude > (255u << 23) ? Bits{} + 0x7e00u : Bits{} + 0x7c00u;
  return (bits >> 16 & 0x8000u) | (magnitude < (143u << 23) ? finite : beyond);
}

template <typename Bits, typename Float>
Bits narrowed(Float value, BFloat16) {
  const Bits bits = std::bit_cast<Bits>(value);
  const Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bits & 0x7fffffffu) > (255u << 23) ? (bits >> 16 | 0x40u) : rounded;
}

inline float load_one(const float* source) { return *source; }

template <typename storage_t>
float load_one(const storage_t* source) {
  return widened<float, uint32_t>(source->bits, storage_t{});
}

inline void store_one(float* target, float value) { *target = value; }

template <typename storage_t>
void store_one(storage_t* target, float value) {
  target->bits = static_cast<uint16_t>(narrowed<uint32_t>(value, storage_t{}));
}

inline Quad load_quad(const float* source) {
  Quad quad;
  std::memcpy(&quad, source, sizeof quad);
  return quad;
}

template <typename storage_t>
Quad load_quad(const storage_t* source) {
  QuadHalves halves;
  std::memcpy(&halves, source, sizeof halves);
  return widened<Quad>(__builtin_convertvector(halves, QuadBits), storage_t{});
}

inline void store_quad(float* target, Quad quad) { std::memcpy(target, &quad, sizeof quad); }

template <typename storage_t>
void store_quad(storage_t* target, Quad quad) {
  const QuadHalves halves = __builtin_convertvector(narrowed<QuadBits>(quad, storage_t{}), QuadHalves);
  std::memcpy(target, &halves, sizeof halves);
}

#if defined(__F16C__)
// One instruction for the dozen above: without it fp16 took 1.07x to 1.15x the time of fp32 on small grids, with it
// 1.00x to 1.04x (EPYC Zen 4, 1 thread, 2026-11-30).
inline Quad load_quad(const Float16* source) {
  return std::bit_cast<Quad>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source))));
}

inline void store_quad(Float16* target, Quad quad) {
  const __m128i halves = _mm_cvtps_ph(std::bit_cast<__m128>(quad), _MM_FROUND_TO_NEAREST_INT);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(target), halves);
}
#endif

// Calls visit(element) with an element of the type that a tensor is stored as.
template <typename Visit>
void with_storage(Storage storage, const Visit& visit) {
  switch (storage) {
    case Storage::float32: return visit(float{});
    case Storage::float16: return visit(Float16{});
    case Storage::bfloat16: return visit(BFloat16{});
  }
  throw std::invalid_argument("storage: expected float32, float16 or bfloat16");
}

}  // namespace s2attn::cpu
