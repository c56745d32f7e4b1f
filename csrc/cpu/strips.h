// What kernels do with a strip: the few partners of a block of owners that are worked on together.
#pragma once

#include <cstdint>

#include "../problem.h"
#include "lanes.h"
#include "packed_grid.h"
#include "partners.h"

namespace s2attn::cpu {

// The lines of one head in a packed tensor.
class HeadLines {
 public:
  HeadLines(const PackedGrid& grid, int32_t head, int32_t channels)
      : grid_(&grid), feature_(int64_t{head} * channels), channels_(channels) {}

  // First channel of the partner of lane 0; the following channels are stride() apart.
  const float* at(int64_t line, int32_t x) const { return grid_->line(line, feature_) + x; }
  int64_t stride() const { return grid_->line_stride(); }
  int32_t channels() const { return channels_; }

 private:
  const PackedGrid* grid_;
  int64_t feature_;
  int32_t channels_;
};

// The owners' own channels, and how far apart they are.
struct OwnerChannels {
  const float* first;
  int64_t stride;
};

// products[i] = owner . partner i, over the channels of a head.
template <int n>
void dot(OwnerChannels owner, const HeadLines& partners, const Partner* strip, Lanes* products) {
  const float* partner[n];
  Lanes sums[n] = {};
  for (int i = 0; i < n; ++i) partner[i] = partners.at(strip[i].line, strip[i].x);
  for (int32_t c = 0; c < partners.channels(); ++c) {
    const Lanes own = load(owner.first + c * owner.stride);
    for (int i = 0; i < n; ++i) sums[i] += own * load(partner[i] + c * partners.stride());
  }
  for (int i = 0; i < n; ++i) products[i] = sums[i];
}

// sums[c] += sum over the strip of factors[i] * partner i [c].
template <int n>
void accumulate(const HeadLines& partners, const Partner* strip, const Lanes* factors, Lanes* sums) {
  const float* partner[n];
  for (int i = 0; i < n; ++i) partner[i] = partners.at(strip[i].line, strip[i].x);
  for (int32_t c = 0; c < partners.channels(); ++c) {
    Lanes sum = sums[c];
    for (int i = 0; i < n; ++i) sum += factors[i] * load(partner[i] + c * partners.stride());
    sums[c] = sum;
  }
}

// Calls visit.template operator()<count>(strip).
template <int n, typename Visit>
void visit_strip(int count, const Partner* strip, const Visit& visit) {
  if constexpr (n > 1) {
    if (count < n) return visit_strip<n - 1>(count, strip, visit);
  }
  visit.template operator()<n>(strip);
}

// Calls visit.template operator()<n>(strip) for all partners of a block of owners, n = 1 .. kStrip at a time. The number
// is a template parameter so that loops over a strip unroll.
template <typename Visit>
void walk(const GatherTable& table, Grid partners, const OwnerBlock& block, const Visit& visit) {
  PartnerCursor cursor(table, partners, block);
  Partner strip[kStrip];
  while (const int count = cursor.next(strip)) visit_strip<kStrip>(count, strip, visit);
}

}  // namespace s2attn::cpu
