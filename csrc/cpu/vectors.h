// Neighboring channels of any storage type, as many as one register holds, as float32.
#pragma once

#include "lanes.h"
#include "storage.h"

namespace s2attn::cpu {

// kProducts vectors of kChannels, one sum each, leave registers for what is multiplied. A vector of two registers is
// none to GCC 12, which keeps it in memory: with 16 channels on AVX2 a forward took three times as long.
#if defined(__AVX512F__)
constexpr int kChannels = 16, kProducts = 16;
#elif defined(__AVX__)
constexpr int kChannels = 8, kProducts = 8;
#else
constexpr int kChannels = 4, kProducts = 8;
#endif

using Channels = float __attribute__((vector_size(kChannels * sizeof(float))));
using ChannelBits = uint32_t __attribute__((vector_size(sizeof(Channels))));
using ChannelHalves = uint16_t __attribute__((vector_size(sizeof(Channels) / 2)));

inline Channels load_channels(const float* source) {
  Channels channels;
  std::memcpy(&channels, source, sizeof channels);
  return channels;
}

template <typename storage_t>
Channels load_channels(const storage_t* source) {
  ChannelHalves halves;
  std::memcpy(&halves, source, sizeof halves);
  return widened<Channels>(__builtin_convertvector(halves, ChannelBits), storage_t{});
}

inline void store_channels(float* target, Channels channels) { std::memcpy(target, &channels, sizeof channels); }

template <typename storage_t>
void store_channels(storage_t* target, Channels channels) {
  const ChannelHalves halves = __builtin_convertvector(narrowed<ChannelBits>(channels, storage_t{}), ChannelHalves);
  std::memcpy(target, &halves, sizeof halves);
}

}  // namespace s2attn::cpu
