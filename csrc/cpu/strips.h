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

// What is summed over a strip: sums[c] += sum of factors[i] * partner i [c].
struct WeightedSum {
  const Lanes* factors;
  Lanes* sums;
};

template <int n>
void accumulate(const HeadLines& partners, const Partner* strip, WeightedSum a) {
  const float* partner[n];
  for (int i = 0; i < n; ++i) partner[i] = partners.at(strip[i].line, strip[i].x);
  for (int32_t c = 0; c < partners.channels(); ++c) {
    Lanes sum = a.sums[c];
    for (int i = 0; i < n; ++i) sum += a.factors[i] * load(partner[i] + c * partners.stride());
    a.sums[c] = sum;
  }
}

// Loads are what these loops wait for, so what needs the same partners is done together.
template <int n>
void accumulate_both(const HeadLines& partners, const Partner* strip, WeightedSum a, WeightedSum b) {
  const float* partner[n];
  for (int i = 0; i < n; ++i) partner[i] = partners.at(strip[i].line, strip[i].x);
  for (int32_t c = 0; c < partners.channels(); ++c) {
    Lanes sum_a = a.sums[c], sum_b = b.sums[c];
    for (int i = 0; i < n; ++i) {
      const Lanes value = load(partner[i] + c * partners.stride());
      sum_a += a.factors[i] * value;
      sum_b += b.factors[i] * value;
    }
    a.sums[c] = sum_a;
    b.sums[c] = sum_b;
  }
}

// dot() and accumulate(): a backward took 1.05x to 1.09x as long with one after the other (quick suite, EPYC Zen 4,
// 1 thread, CPU time, 2026-11-30).
template <int n>
void dot_and_accumulate(OwnerChannels owner, const HeadLines& partners, const Partner* strip, Lanes* products,
                        WeightedSum a) {
  const float* partner[n];
  Lanes dots[n] = {};
  for (int i = 0; i < n; ++i) partner[i] = partners.at(strip[i].line, strip[i].x);
  for (int32_t c = 0; c < partners.channels(); ++c) {
    const Lanes own = load(owner.first + c * owner.stride);
    Lanes sum = a.sums[c];
    for (int i = 0; i < n; ++i) {
      const Lanes value = load(partner[i] + c * partners.stride());
      dots[i] += own * value;
      sum += a.factors[i] * value;
    }
    a.sums[c] = sum;
  }
  for (int i = 0; i < n; ++i) products[i] = dots[i];
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
