// A tensor on a grid, rearranged so that one vector load yields a channel of sixteen neighboring owners' partners.
#pragma once

#include <cstdint>
#include <memory>

#include "../problem.h"
#include "kept_memory.h"

namespace s2attn::cpu {

// Source: NHWC, [batch, nlat, nlon, features], of any storage type.
// Packed: float32, [batch * nlat * classes][features][line], where class c of a latitude holds the longitudes c,
// c + classes, c + 2 classes, ... The finer of the two grids has classes = pscale, the coarser 1: stepping to the next
// owner then always steps to the next element of the partner's line, also where the grids differ. The tail of a line
// repeats its beginning, so a load that starts before the seam runs across it.
class PackedGrid {
 public:
  struct Source {
    const void* data;
    Storage storage;
    int64_t batch;
    Grid grid;
    int64_t features;
    int32_t classes;
  };

  PackedGrid(const Source& source, int threads);

  const float* line(int64_t line_index, int64_t feature) const {
    return data_.get() + (line_index * features_ + feature) * line_;
  }
  // Distance between the lines of two consecutive features.
  int64_t line_stride() const { return line_; }

 private:
  struct GiveBack {
    int64_t bytes;
    void operator()(float* pointer) const { give_memory_back(pointer, bytes); }
  };

  template <typename storage_t>
  void pack(const storage_t* data, const Source& source, int threads);

  int64_t features_;
  int64_t line_;
  std::unique_ptr<float[], GiveBack> data_;
};

}  // namespace s2attn::cpu
