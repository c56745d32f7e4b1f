// Computes: what forward.cpp computes.
// Layout: NHWC of any storage type, read where it lies; channels per head are whole vectors.
// Mapping: a thread takes sixteen queries of one latitude and head at a time. Their scores and sums of values are found
//   with neighboring channels side by side: kProducts scores, four queries of some keys or more queries of one key, are
//   then summed across channels. The softmax between them has a lane per query.
// Requires: channels and channels_out are multiples of kLanes.
// Numerics: float32; all scores of a query are kept, so the softmax has its maximum; a score is summed in kChannels
//   parts.
#include <algorithm>
#include <cmath>

#include "blocks.h"
#include "kernels.h"
#include "sums.h"
#include "vectors.h"

namespace s2attn::cpu {
namespace {

// A key of the block's first query; its other queries have the same ones, some longitudes further.
struct Key {
  int64_t row;  // index of the first point of its latitude
  int32_t lon;
  float weight;
};

// Vectors of lanes that a thread needs for a block: its queries, scores and keys.
struct Sizes {
  int64_t q, scores, keys;
  int64_t total() const { return q + scores + keys; }
};

Sizes sizes_of(const ForwardParams& params) {
  const GatherTable& table = params.query_table;
  const int64_t rows = int64_t{params.shape.query.nlat} * table.residues;
  int64_t most = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t keys = 0;
    for (int64_t arc = table.arc_off[row]; arc < table.arc_off[row + 1]; ++arc)
      keys += table.arcs[arc * kArcFields + 2];
    most = std::max(most, keys);
  }
  return {params.shape.channels, most, most * int64_t{sizeof(Key)} / kLaneBytes + 1};
}

template <typename storage_t>
class QueryBlock {
 public:
  QueryBlock(const ForwardParams& params, const OwnerBlock& block, const Sizes& sizes, Lanes* scratch)
      : params_(params),
        block_(block),
        q_vectors_(params.shape.channels / kChannels),
        y_vectors_(params.shape.channels_out / kChannels),
        k_stride_(int64_t{params.shape.heads} * params.shape.channels),
        v_stride_(int64_t{params.shape.heads} * params.shape.channels_out),
        queries_(static_cast<const storage_t*>(params.q) + int64_t{block.head} * params.shape.channels),
        k_(static_cast<const storage_t*>(params.k) + int64_t{block.head} * params.shape.channels),
        v_(static_cast<const storage_t*>(params.v) + int64_t{block.head} * params.shape.channels_out),
        y_(static_cast<storage_t*>(params.y) + int64_t{block.head} * params.shape.channels_out),
        q_(reinterpret_cast<Channels*>(scratch)),
        scores_(scratch + sizes.q),
        keys_(reinterpret_cast<Key*>(scratch + sizes.q + sizes.scores)) {
    read_queries();
    list_keys();
  }

  void attend() {
    constexpr int kKeys = kProducts / 4;
    int j = 0;
    for (; j + kKeys <= count_; j += kKeys) score<kKeys>(j);
    for (; j < count_; ++j) score<1>(j);
    softmax();
    for (int i = 0; i < block_.count; ++i) {
      prefetch_beyond(i);
      int32_t c = 0;
      for (; c + 4 <= y_vectors_; c += 4) store_weighted<4>(i, c);
      for (; c < y_vectors_; ++c) store_weighted<1>(i, c);
    }
  }

 private:
  void read_queries() {
    for (int i = 0; i < kLanes; ++i) {
      const storage_t* q = queries_ + point(std::min(i, block_.count - 1)) * k_stride_;
      for (int32_t c = 0; c < q_vectors_; ++c) q_[i * q_vectors_ + c] = load_channels(q + c * kChannels);
    }
  }

  void list_keys() {
    const GatherTable& table = params_.query_table;
    const Grid grid = params_.shape.key;
    const int64_t row = int64_t{block_.lat} * table.residues + block_.residue;
    for (int32_t arc = table.arc_off[row]; arc < table.arc_off[row + 1]; ++arc) {
      const int32_t* fields = table.arcs + int64_t{arc} * kArcFields;
      int32_t lon = fields[1] + block_.first * table.stride;
      for (int32_t j = 0; j < fields[2]; ++j, ++lon) {
        if (lon >= grid.nlon) lon -= grid.nlon;
        keys_[count_++] = {(block_.batch * grid.nlat + fields[0]) * grid.nlon, lon, params_.quad_weights[fields[0]]};
      }
    }
  }

  int64_t point(int i) const {
    const int64_t longitude = block_.residue + int64_t{params_.query_table.residues} * (block_.first + i);
    return (block_.batch * params_.shape.query.nlat + block_.lat) * params_.shape.query.nlon + longitude;
  }

  // The point of a key, for query i.
  int64_t key_point(const Key& key, int i) const {
    const int32_t lon = key.lon + i * params_.query_table.stride, nlon = params_.shape.key.nlon;
    return key.row + (lon >= nlon ? lon - nlon : lon);
  }

  // Asks for query i of the next block and for its last key, which is the one that no query before it had: a block of
  // 64 channels is a page of 4 KiB, and hardware prefetching ends with a page. Values as well: no faster.
  // 180x360, 64 channels, 11 keys per query: 8.8 ms, without this 10.2 (EPYC Zen 4, 1 thread, 2026-11-30).
  // Inlined, because GCC 12 drops calls of a function that does nothing but prefetch.
  [[gnu::always_inline]] void prefetch_beyond(int i) const {
    if (count_ == 0) return;
    const storage_t* q = queries_ + point(i + kLanes) * k_stride_;
    const storage_t* k = k_ + key_point(keys_[count_ - 1], i + kLanes) * k_stride_;
    constexpr int32_t kCacheLine = 64 / sizeof(storage_t);
    for (int32_t c = 0; c < params_.shape.channels; c += kCacheLine) {
      __builtin_prefetch(q + c);
      __builtin_prefetch(k + c);
    }
  }

  // Scores of all queries, beyond the last of which it repeats, and n keys.
  template <int n>
  void score(int first_key) {
    constexpr int kQueries = kProducts / n;
    for (int first = 0; first < block_.count; first += kQueries) {
      const storage_t* k[kProducts];
      for (int p = 0; p < kProducts; ++p) {
        const int query = std::min(first + p % kQueries, block_.count - 1);
        k[p] = k_ + key_point(keys_[first_key + p / kQueries], query) * k_stride_;
      }
      Channels sums[kProducts] = {};
      for (int32_t c = 0; c < q_vectors_; ++c)
        for (int i = 0; i < kQueries; ++i) {
          const Channels own = q_[(first + i) * q_vectors_ + c];
          for (int p = i; p < kProducts; p += kQueries) sums[p] += own * load_channels(k[p] + c * kChannels);
        }
      for (int p = 0; p < kProducts; p += 4) {
        auto* scores = reinterpret_cast<float*>(scores_ + first_key + p / kQueries);
        store_quad(scores + first + p % kQueries, sums_of_four(sums + p));
      }
    }
  }

  // Turns scores into the factors of the values.
  void softmax() {
    Lanes largest = splat(-kInfinity), normalizer = {};
    for (int j = 0; j < count_; ++j) largest = maximum(largest, scores_[j]);
    for (int j = 0; j < count_; ++j) {
      scores_[j] = exponential(scores_[j] - largest) * keys_[j].weight;
      normalizer += scores_[j];
    }
    const Lanes inverse = normalizer == 0.0f ? Lanes{} : 1.0f / normalizer;
    for (int j = 0; j < count_; ++j) scores_[j] *= inverse;
    for (int i = 0; i < block_.count; ++i)
      params_.lse[point(i) * params_.shape.heads + block_.head] =
          normalizer[i] == 0.0f ? -kInfinity : largest[i] + std::log(normalizer[i]);
  }

  template <int n>
  void store_weighted(int i, int32_t c) {
    Channels sums[n] = {};
    for (int j = 0; j < count_; ++j) {
      const float factor = reinterpret_cast<const float*>(scores_ + j)[i];
      const storage_t* value = v_ + key_point(keys_[j], i) * v_stride_ + c * kChannels;
      for (int part = 0; part < n; ++part) sums[part] += factor * load_channels(value + part * kChannels);
    }
    for (int part = 0; part < n; ++part) store_channels(y_ + point(i) * v_stride_ + (c + part) * kChannels, sums[part]);
  }

  const ForwardParams& params_;
  const OwnerBlock& block_;
  int32_t q_vectors_, y_vectors_;
  int64_t k_stride_, v_stride_;
  const storage_t *queries_, *k_, *v_;
  storage_t* y_;
  Channels* q_;
  Lanes* scores_;
  Key* keys_;
  int count_ = 0;
};

}  // namespace

void forward_unpacked(const ForwardParams& params, Storage storage, int threads) {
  const Shape& shape = params.shape;
  const Owners queries{shape.batch, shape.query, params.query_table.residues, shape.heads};
  const Sizes sizes = sizes_of(params);
  const Scratch scratch(threads, sizes.total());
  with_storage(storage, [&]<typename storage_t>(storage_t) {
    for_each_block(queries, threads, [&](const OwnerBlock& block) {
      QueryBlock<storage_t>(params, block, sizes, scratch.of_this_thread()).attend();
    });
  });
}

}  // namespace s2attn::cpu
