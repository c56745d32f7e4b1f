// One head of a batch in tensors whose rows, a point each, hold all heads: where its channels are.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../problem.h"

namespace s2attn::cuda {

// Of one batch.
template <typename storage_t>
struct HeadRows {
  storage_t* first;
  uint32_t pitch_bytes;  // from one point to the next
  int32_t channels;

  __device__ storage_t* row(uint32_t point) const {
    using Bytes = std::conditional_t<std::is_const_v<storage_t>, const char, char>;
    return reinterpret_cast<storage_t*>(reinterpret_cast<Bytes*>(first) + uint64_t{point} * pitch_bytes);
  }
};

// All channels of the head, or some of them.
struct HeadChannels {
  int32_t count;
  int32_t first;
  int32_t pitch;

  __device__ HeadChannels(const Shape& shape, uint32_t head, int32_t channels)
      : count(channels), first(head * channels), pitch(shape.heads * channels) {}

  // Part number `part` of parts of so many channels. One without channels begins where the row does: it may be read.
  __device__ HeadChannels part(int part, int channels) const {
    HeadChannels some = *this;
    some.count = min(max(count - part * channels, 0), channels);
    some.first += some.count > 0 ? part * channels : 0;
    return some;
  }

  // first_point: of the batch.
  template <typename storage_t>
  __device__ HeadRows<storage_t> rows(void* tensor, uint64_t first_point) const {
    return rows_of(static_cast<storage_t*>(tensor), first_point);
  }
  template <typename storage_t>
  __device__ HeadRows<const storage_t> rows(const void* tensor, uint64_t first_point) const {
    return rows_of(static_cast<const storage_t*>(tensor), first_point);
  }

 private:
  template <typename storage_t>
  __device__ HeadRows<storage_t> rows_of(storage_t* tensor, uint64_t first_point) const {
    return {tensor + (first_point * pitch + first), static_cast<uint32_t>(pitch * sizeof(storage_t)), count};
  }
};

__device__ inline uint64_t first_point(uint32_t batch, Grid grid) {
  return uint64_t{batch} * static_cast<uint32_t>(grid.nlat * grid.nlon);
}

}  // namespace s2attn::cuda
