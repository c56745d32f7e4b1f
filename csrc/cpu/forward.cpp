// Computes: y = sum_i w_i exp(q . k_i) v_i / sum_i w_i exp(q . k_i) and lse = log sum_i w_i exp(q . k_i) over the
//   partners i of each query; without partners y = 0 and lse = -inf.
// Layout: NHWC of any storage type in and out; keys and values packed as channel-major float32 (packed_grid.h).
// Mapping: a thread takes sixteen queries of one latitude and head at a time, a lane each; they share the arcs, shifted.
// Numerics: float32, online softmax: y and the sum are rescaled whenever the running maximum of a lane rises.
#include <cmath>

#include "blocks.h"
#include "kernels.h"
#include "packed_grid.h"
#include "strips.h"

namespace s2attn::cpu {
namespace {

struct ForwardPass {
  const ForwardParams& params;
  Storage storage;
  Owners queries;
  PackedGrid k, v;
};

// The online softmax of sixteen queries: sums of weighted values, relative to the largest score so far.
class OnlineSoftmax {
 public:
  OnlineSoftmax(Lanes* sums, int32_t channels) : sums_(sums), channels_(channels) {
    for (int32_t c = 0; c < channels_; ++c) sums_[c] = Lanes{};
  }

  template <int n>
  void raise_maximum(const Lanes* scores) {
    Lanes raised = maximum_;
    for (int i = 0; i < n; ++i) raised = maximum(raised, scores[i]);
    if (!any(raised != maximum_)) return;
    const Lanes factor = exponential(maximum_ - raised);
    normalizer_ *= factor;
    for (int32_t c = 0; c < channels_; ++c) sums_[c] *= factor;
    maximum_ = raised;
  }

  Lanes weigh(Lanes score, float quad_weight) {
    const Lanes weight = exponential(score - maximum_) * quad_weight;
    normalizer_ += weight;
    return weight;
  }

  // Turns the sums into y and returns the log-sum-exp. Lanes share their arcs: all of them have partners, or none.
  Lanes finish(bool empty) {
    const Lanes inverse = empty ? Lanes{} : 1.0f / normalizer_;
    for (int32_t c = 0; c < channels_; ++c) sums_[c] *= inverse;
    Lanes lse;
    for (int i = 0; i < kLanes; ++i) lse[i] = empty ? -kInfinity : maximum_[i] + std::log(normalizer_[i]);
    return lse;
  }

 private:
  Lanes* sums_;
  int32_t channels_;
  Lanes maximum_ = splat(-kInfinity);
  Lanes normalizer_ = {};
};

void query_block(const ForwardPass& pass, const OwnerBlock& block, Lanes* y) {
  const ForwardParams& params = pass.params;
  const Shape& shape = params.shape;
  const HeadLines k(pass.k, block.head, shape.channels), v(pass.v, block.head, shape.channels_out);
  Lanes* q_channels = y + shape.channels_out;
  load_block(pass.queries, block, {params.q, pass.storage, shape.channels}, q_channels);
  const OwnerChannels q{reinterpret_cast<const float*>(q_channels), kLanes};
  OnlineSoftmax softmax(y, shape.channels_out);
  bool empty = true;
  walk(params.query_table, shape.key, block, [&]<int n>(const Partner* strip) {
    Lanes scores[n];
    dot<n>(q, k, strip, scores);
    softmax.raise_maximum<n>(scores);
    for (int i = 0; i < n; ++i) scores[i] = softmax.weigh(scores[i], params.quad_weights[strip[i].lat]);
    accumulate<n>(v, strip, {scores, y});
    empty = false;
  });
  const Lanes lse = softmax.finish(empty);
  store_block(pass.queries, block, y, {params.y, pass.storage, shape.channels_out});
  store_block(pass.queries, block, &lse, {params.lse, Storage::float32, 1});
}

// Whether so few keys per query would use the packed tensors that it is faster to read keys where they lie. To 180x360,
// read where they lie and packed: 16 channels, 11 keys per query 2.2 and 2.7 ms; 32 channels, 41 keys 9.9 and 8.8;
// 64 channels, 164 keys 48.7 and 65.3, some 440 keys 80.0 and 68.9 (EPYC Zen 4, 2 threads, 2026-11-30).
bool packing_pays_not(const ForwardParams& params) {
  const Shape& shape = params.shape;
  if (shape.channels % kLanes != 0 || shape.channels_out % kLanes != 0) return false;
  const int64_t rows = int64_t{shape.query.nlat} * params.query_table.residues;
  int64_t keys = 0;
  for (int64_t arc = 0; arc < params.query_table.arc_off[rows]; ++arc)
    keys += params.query_table.arcs[arc * kArcFields + 2];
  return 24 * keys <= rows * shape.channels * shape.channels_out;
}

}  // namespace

void forward(const ForwardParams& params, Storage storage, int threads) {
  const Shape& shape = params.shape;
  if (packing_pays_not(params)) return forward_unpacked(params, storage, threads);
  const auto pack = [&](const void* data, int32_t channels) {
    const int64_t features = int64_t{shape.heads} * channels;
    return PackedGrid({data, storage, shape.batch, shape.key, features, params.query_table.stride}, threads);
  };
  const ForwardPass pass{params,
                         storage,
                         {shape.batch, shape.query, params.query_table.residues, shape.heads},
                         pack(params.k, shape.channels),
                         pack(params.v, shape.channels_out)};
  const Scratch scratch(threads, int64_t{shape.channels} + shape.channels_out);
  for_each_block(pass.queries, threads,
                 [&](const OwnerBlock& block) { query_block(pass, block, scratch.of_this_thread()); });
}

}  // namespace s2attn::cpu
