#include "packed_grid.h"

#include "lanes.h"
#include "storage.h"
#include "transpose.h"

namespace s2attn::cpu {
namespace {

// Whole vectors, with room for a load at the last element, and an odd number of them: the channels of one longitude are
// a line apart, and a distance of many powers of two would crowd them into a few sets of the cache.
int64_t line_length(int64_t elements) {
  const int64_t vectors = (elements + 2 * kLanes - 2) / kLanes;
  return (vectors | 1) * kLanes;
}

int64_t line_count(const PackedGrid::Source& source) { return source.batch * source.grid.nlat * source.classes; }

}  // namespace

PackedGrid::PackedGrid(const Source& source, int threads)
    : features_(source.features), line_(line_length(source.grid.nlon / source.classes)) {
  const int64_t bytes = line_count(source) * features_ * line_ * int64_t{sizeof(float)};
  data_ = {take_memory(bytes), GiveBack{bytes}};
  with_storage(source.storage, [&]<typename storage_t>(storage_t) {
    pack(static_cast<const storage_t*>(source.data), source, threads);
  });
}

template <typename storage_t>
void PackedGrid::pack(const storage_t* data, const Source& source, int threads) {
  const int64_t lines = line_count(source), elements = source.grid.nlon / source.classes;
  const int64_t row_stride = features_ * source.classes;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t index = 0; index < lines; ++index) {
    const int64_t latitude = index / source.classes, longitude = index % source.classes;
    const storage_t* first = data + (latitude * source.grid.nlon + longitude) * features_;
    float* target = data_.get() + index * features_ * line_;
    transpose(first, row_stride, target, line_, elements, features_);
    for (int64_t f = 0; f < features_; ++f) {
      float* line = target + f * line_;
      for (int64_t i = elements; i < line_; ++i) line[i] = line[i - elements];
    }
  }
}

}  // namespace s2attn::cpu
