// The walk of one group of lanes over its share of an owner's partners.
#pragma once

#include <cstdint>

#include "../../problem.h"
#include "owners.cuh"

namespace s2attn::cuda {

struct Partner {
  int64_t point;  // (batch, lat, lon) flattened
  int32_t lat;
};

// Visits the partners number first, first + step, first + 2 step, ... of the owner, counted over all its arcs.
// Longitudes wrap by conditional resets; nothing is divided per partner.
class PartnerCursor {
 public:
  __device__ PartnerCursor(const GatherTable& table, Grid partners, const Owner& owner, int first, int step)
      : step_(step),
        position_(first),
        nlon_(partners.nlon),
        shift_(owner.lon / table.residues * table.stride),
        first_lat_(owner.batch * partners.nlat) {
    const int64_t row = int64_t{owner.lat} * table.residues + owner.lon % table.residues;
    arc_ = table.arcs + int64_t{table.arc_off[row]} * kArcFields;
    end_ = table.arcs + int64_t{table.arc_off[row + 1]} * kArcFields;
    find_arc();
  }

  __device__ bool done() const { return arc_ == end_; }

  __device__ Partner next() {
    int32_t lon = base_ + position_;
    if (lon >= nlon_) lon -= nlon_;
    const Partner partner{(first_lat_ + lat_) * nlon_ + lon, lat_};
    position_ += step_;
    if (position_ >= length_) {
      position_ -= length_;
      arc_ += kArcFields;
      find_arc();
    }
    return partner;
  }

 private:
  __device__ void find_arc() {
    for (; arc_ != end_; arc_ += kArcFields) {
      length_ = arc_[2];
      if (position_ < length_) break;
      position_ -= length_;
    }
    if (arc_ == end_) return;
    lat_ = arc_[0];
    base_ = arc_[1] + shift_;
    if (base_ >= nlon_) base_ -= nlon_;
  }

  const int32_t* arc_;
  const int32_t* end_;
  int32_t step_;
  int32_t position_;  // within the current arc
  int32_t nlon_;
  int32_t shift_;
  int64_t first_lat_;
  int32_t length_ = 0;
  int32_t lat_ = 0;
  int32_t base_ = 0;
};

}  // namespace s2attn::cuda
