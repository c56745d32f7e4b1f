// Computes: what forward.cpp computes.
// Layout: NHWC of any storage type, read where it lies; channels per head are whole vectors.
// Mapping: a thread takes sixteen queries of one latitude and head at a time; lanes are channels. Up to sixteen keys
//   are worked on together, for one query after the other: their scores, summed across lanes, make one softmax step.
// Requires: channels and channels_out are multiples of kLanes.
// Numerics: float32, online softmax as in forward.cpp; a score is summed in sixteen parts.
#include <algorithm>
#include <cmath>
#include <utility>

#include "blocks.h"
#include "kernels.h"
#include "sums.h"
#include "vectors.h"

namespace s2attn::cpu {
namespace {

// Up to sixteen keys of the block's first query; its other queries have the same ones, some longitudes further.
struct KeyGroup {
  int64_t row[kLanes] = {};  // index of the first point of the key's latitude
  int32_t lon[kLanes] = {};
  float weight[kLanes] = {};
  int count = 0;

  // Fills up to a whole quad with the first key, so that scores are computed four at a time.
  void pad() {
    for (int j = count; j < kLanes && j % 4; ++j) row[j] = row[0], lon[j] = lon[0];
    for (int j = count; j < kLanes; ++j) weight[j] = 0.0f;
  }
  int32_t last_longitude() const { return *std::max_element(lon, lon + count); }
};

template <typename storage_t>
class QueryBlock {
 public:
  QueryBlock(const ForwardParams& params, const OwnerBlock& block, Lanes* scratch)
      : params_(params),
        block_(block),
        q_vectors_(params.shape.channels / kLanes),
        y_vectors_(params.shape.channels_out / kLanes),
        k_stride_(int64_t{params.shape.heads} * params.shape.channels),
        v_stride_(int64_t{params.shape.heads} * params.shape.channels_out),
        k_(static_cast<const storage_t*>(params.k) + int64_t{block.head} * params.shape.channels),
        v_(static_cast<const storage_t*>(params.v) + int64_t{block.head} * params.shape.channels_out),
        y_(scratch),
        q_(scratch + int64_t{kLanes} * y_vectors_) {
    const auto* q = static_cast<const storage_t*>(params.q) + int64_t{block.head} * params.shape.channels;
    for (int i = 0; i < block.count; ++i) {
      const storage_t* channels = q + point(i) * k_stride_;
      for (int32_t c = 0; c < q_vectors_; ++c) q_[i * q_vectors_ + c] = load_lanes(channels + c * kLanes);
      for (int32_t c = 0; c < y_vectors_; ++c) y_[i * y_vectors_ + c] = Lanes{};
      maximum_[i] = -kInfinity;
      normalizer_[i] = Lanes{};
    }
  }

  // Lets every query of the block attend to its keys of the group.
  void take(KeyGroup& group) {
    group.pad();
    const int32_t stride = params_.query_table.stride;
    const bool crosses_seam = group.last_longitude() + stride * (block_.count - 1) >= params_.shape.key.nlon;
    point_at(group, 0);
    for (int i = 0; i < block_.count; ++i) {
      if (crosses_seam) point_at(group, i * stride);
      step(i, group, crosses_seam ? 0 : int64_t{i} * stride);
    }
  }

  void store() {
    auto* out = static_cast<storage_t*>(params_.y) + int64_t{block_.head} * params_.shape.channels_out;
    for (int i = 0; i < block_.count; ++i) {
      const float normalizer = sum(normalizer_[i]);
      const bool empty = normalizer == 0.0f;
      const float inverse = empty ? 0.0f : 1.0f / normalizer;
      params_.lse[point(i) * params_.shape.heads + block_.head] =
          empty ? -kInfinity : maximum_[i] + std::log(normalizer);
      for (int32_t c = 0; c < y_vectors_; ++c)
        store_lanes(out + point(i) * v_stride_ + c * kLanes, y_[i * y_vectors_ + c] * inverse);
    }
  }

 private:
  int64_t point(int i) const {
    const int64_t longitude = block_.residue + int64_t{params_.query_table.residues} * (block_.first + i);
    return (block_.batch * params_.shape.query.nlat + block_.lat) * params_.shape.query.nlon + longitude;
  }

  // Sets where the vectors of the group's keys begin, for the query that is so many longitudes of keys further.
  void point_at(const KeyGroup& group, int32_t shift) {
    const int32_t nlon = params_.shape.key.nlon;
    for (int j = 0; j < (group.count + 3) / 4 * 4; ++j) {
      const int32_t lon = group.lon[j] + shift;
      const int64_t point = group.row[j] + (lon >= nlon ? lon - nlon : lon);
      keys_[j] = k_ + point * k_stride_;
      values_[j] = v_ + point * v_stride_;
    }
  }

  void step(int i, const KeyGroup& group, int64_t shift) {
    const Lanes* q = q_ + i * q_vectors_;
    Lanes* y = y_ + i * y_vectors_;
    Quad scores[kLanes / 4];
    if (group.count == kLanes) {
      for (int j = 0; j < kLanes; j += 8) dot<8>(q, j, shift * k_stride_, scores + j / 4);
    } else {
      for (int j = 0; j < kLanes; j += 4) scores[j / 4] = Quad{} - kInfinity;
      for (int j = 0; j < group.count; j += 4) dot<4>(q, j, shift * k_stride_, scores + j / 4);
    }
    const Lanes score = joined(scores);
    raise_maximum(i, largest(score));
    const Lanes weight = exponential(score - maximum_[i]) * load(group.weight);
    normalizer_[i] += weight;
    float factors[kLanes];
    store_lanes(factors, weight);
    int j = 0;
    for (; j + 8 <= group.count; j += 8) accumulate<8>(j, shift * v_stride_, factors + j, y);
    // one by one: a weight of 0 would not keep out a value that is infinite
    for (; j < group.count; ++j) accumulate<1>(j, shift * v_stride_, factors + j, y);
  }

  void raise_maximum(int i, float candidate) {
    if (!(candidate > maximum_[i])) return;
    const float before = std::exchange(maximum_[i], candidate);
    if (before == -kInfinity) return;  // nothing is summed up yet
    const float factor = exponential(splat(before - candidate))[0];
    normalizer_[i] *= factor;
    for (int32_t c = 0; c < y_vectors_; ++c) y_[i * y_vectors_ + c] *= factor;
  }

  template <int n>
  void dot(const Lanes* q, int first, int64_t shift, Quad* scores) const {
    Lanes sums[n] = {};
    for (int32_t c = 0; c < q_vectors_; ++c) {
      const Lanes own = q[c];
      for (int j = 0; j < n; ++j) sums[j] += own * load_lanes(keys_[first + j] + shift + c * kLanes);
    }
    for (int j = 0; j < n; j += 4) scores[j / 4] = sums_of_four(sums + j);
  }

  template <int n>
  void accumulate(int first, int64_t shift, const float* factors, Lanes* y) const {
    for (int32_t c = 0; c < y_vectors_; ++c) {
      Lanes sum = y[c];
      for (int j = 0; j < n; ++j) sum += factors[j] * load_lanes(values_[first + j] + shift + c * kLanes);
      y[c] = sum;
    }
  }

  const ForwardParams& params_;
  const OwnerBlock& block_;
  int32_t q_vectors_, y_vectors_;
  int64_t k_stride_, v_stride_;
  const storage_t *k_, *v_;
  Lanes* y_;
  Lanes* q_;
  const storage_t* keys_[kLanes];
  const storage_t* values_[kLanes];
  float maximum_[kLanes];
  Lanes normalizer_[kLanes];
};

// Calls take(group) for all keys of the block's first query.
template <typename Take>
void walk_keys(const ForwardParams& params, const OwnerBlock& block, const Take& take) {
  const GatherTable& table = params.query_table;
  const int64_t row = int64_t{block.lat} * table.residues + block.residue;
  const int32_t nlon = params.shape.key.nlon, shift = block.first * table.stride;
  KeyGroup group;
  for (int32_t arc = table.arc_off[row]; arc < table.arc_off[row + 1]; ++arc) {
    const int32_t* fields = table.arcs + int64_t{arc} * kArcFields;
    int32_t lon = fields[1] + shift;
    if (lon >= nlon) lon -= nlon;
    for (int32_t j = 0; j < fields[2]; ++j) {
      group.row[group.count] = (block.batch * params.shape.key.nlat + fields[0]) * nlon;
      group.lon[group.count] = lon;
      group.weight[group.count] = params.quad_weights[fields[0]];
      if (++lon == nlon) lon = 0;
      if (++group.count < kLanes) continue;
      take(group);
      group.count = 0;
    }
  }
  if (group.count) take(group);
}

template <typename storage_t>
void query_block(const ForwardParams& params, const OwnerBlock& block, Lanes* scratch) {
  QueryBlock<storage_t> queries(params, block, scratch);
  walk_keys(params, block, [&](KeyGroup& group) { queries.take(group); });
  queries.store();
}

}  // namespace

void forward_unpacked(const ForwardParams& params, Storage storage, int threads) {
  const Shape& shape = params.shape;
  const Owners queries{shape.batch, shape.query, params.query_table.residues, shape.heads};
  const Scratch scratch(threads, int64_t{shape.channels} + shape.channels_out);  // kLanes queries and results
  with_storage(storage, [&]<typename storage_t>(storage_t) {
    for_each_block(queries, threads,
                   [&](const OwnerBlock& block) { query_block<storage_t>(params, block, scratch.of_this_thread()); });
  });
}

}  // namespace s2attn::cpu
