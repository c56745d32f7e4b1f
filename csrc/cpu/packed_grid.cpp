#include "packed_grid.h"

#include <new>

#include "lanes.h"

namespace s2attn::cpu {
namespace {

// Whole vectors, with room for a load at the last element, and an odd number of them: the channels of one longitude are
// a line apart, and a distance of many powers of two would crowd them into a few sets of the cache.
int64_t line_length(int64_t elements) {
  const int64_t vectors = (elements + 2 * kLanes - 2) / kLanes;
  return (vectors | 1) * kLanes;
}

}  // namespace

PackedGrid::PackedGrid(const Source& source, int threads) : features_(source.features) {
  const int64_t elements = source.grid.nlon / source.classes;
  line_ = line_length(elements);
  const int64_t lines = source.batch * source.grid.nlat * source.classes;
  data_.reset(static_cast<float*>(std::aligned_alloc(kLaneBytes, lines * features_ * line_ * sizeof(float))));
  if (!data_) throw std::bad_alloc();
  const int64_t row_stride = features_ * source.classes;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t index = 0; index < lines; ++index) {
    const int64_t latitude = index / source.classes, longitude = index % source.classes;
    const float* first = source.data + (latitude * source.grid.nlon + longitude) * features_;
    float* target = data_.get() + index * features_ * line_;
    transpose(first, row_stride, target, line_, elements, features_);
    for (int64_t f = 0; f < features_; ++f) {
      float* line = target + f * line_;
      for (int64_t i = elements; i < line_; ++i) line[i] = line[i - elements];
    }
  }
}

}  // namespace s2attn::cpu
