// Computes, with p_qk = w_k exp(q . k - lse_q), delta_q = dy_q . y_q and ds_qk = p_qk (dy_q . v_k - delta_q):
//   dq_q = sum_k ds_qk k_k      dk_k = sum_q ds_qk q_q      dv_k = sum_q p_qk dy_q
// Layout: NHWC of any storage type in and out; packed channel-major float32 in between (packed_grid.h).
// Mapping: two gathers. Sixteen queries at a time walk their keys, keep dq and leave statistics; sixteen keys at a time
//   walk the queries they belong to and keep dk and dv. Both compute p anew.
// Numerics: float32; sums of an owner are formed in the order of its arcs. lse and y come rounded, and so would p and
//   delta: alike for all keys of a query, so that nothing averages out. The first gather therefore sums p and ds too,
//   which should give 1 and 0, and corrects what it used by what they give. Errors of dq, dk and dv against float64 on
//   180x360 with 64 channels and a cutoff of 0.017: 1.9e-7, 1.9e-7 and 9.7e-8; uncorrected 4.6e-7, 4.6e-7 and 3.6e-7.
#include <algorithm>
#include <cmath>

#include "blocks.h"
#include "kernels.h"
#include "packed_grid.h"
#include "storage.h"
#include "strips.h"

namespace s2attn::cpu {
namespace {

struct BackwardPass {
  const BackwardParams& params;
  Storage storage;
  Owners queries;
  Owners keys;
  PackedGrid q, dy;  // on the query grid
  PackedGrid k, v;   // on the key grid
};

// What the first gather leaves of a query and head for the second: p_qk = w_k exp(q . k - reference) * factor.
enum Statistic { kReference, kFactor, kDelta };

// Sum of the weights of a query's keys.
float total_weight(const BackwardParams& params, const OwnerBlock& block) {
  const GatherTable& table = params.query_table;
  const int64_t row = int64_t{block.lat} * table.residues + block.residue;
  float sum = 0.0f;
  for (int32_t index = table.arc_off[row]; index < table.arc_off[row + 1]; ++index) {
    const int32_t* arc = table.arcs + int64_t{index} * kArcFields;
    sum += params.quad_weights[arc[0]] * static_cast<float>(arc[2]);
  }
  return sum;
}

// The log-sum-exp less the logarithm of the total weight, a mean of the scores: with it the difference from a score is
// small, and so is its rounding, whatever area the weights stand for.
Lanes reference_score(const BackwardPass& pass, const OwnerBlock& block) {
  Lanes lse;
  load_block(pass.queries, block, {pass.params.lse, Storage::float32, 1}, &lse);
  return lse - std::log(total_weight(pass.params, block));
}

// delta from y as stored; y is scratch.
Lanes rounded_delta(const BackwardPass& pass, const OwnerBlock& block, OwnerChannels dy, Lanes* y) {
  const int32_t channels = pass.params.shape.channels_out;
  load_block(pass.queries, block, {pass.params.y, pass.storage, channels}, y);
  Lanes sum = {};
  for (int32_t c = 0; c < channels; ++c) sum += load(dy.first + c * dy.stride) * y[c];
  return sum;
}

void query_block(const BackwardPass& pass, const OwnerBlock& block, Lanes* dq) {
  const BackwardParams& params = pass.params;
  const Shape& shape = params.shape;
  const HeadLines k(pass.k, block.head, shape.channels), v(pass.v, block.head, shape.channels_out);
  const OwnerChannels q = owner_channels(pass.queries, block, pass.q, shape.channels);
  const OwnerChannels dy = owner_channels(pass.queries, block, pass.dy, shape.channels_out);
  const Lanes reference = reference_score(pass, block), delta = rounded_delta(pass, block, dy, dq);
  Lanes* weighted_k = dq + shape.channels;
  for (int32_t c = 0; c < 2 * shape.channels; ++c) dq[c] = Lanes{};
  Lanes sum_p = {}, sum_ds = {};
  bool empty = true;
  walk(params.query_table, shape.key, block, [&]<int n>(const Partner* strip) {
    Lanes p[n], ds[n];
    dot<n>(q, k, strip, p);
    dot<n>(dy, v, strip, ds);
    for (int i = 0; i < n; ++i) {
      p[i] = exponential(p[i] - reference) * params.quad_weights[strip[i].lat];
      ds[i] = p[i] * (ds[i] - delta);
      sum_p += p[i];
      sum_ds += ds[i];
    }
    if (params.dq) accumulate_both<n>(k, strip, {ds, dq}, {p, weighted_k});
    empty = false;
  });
  const Lanes factor = empty ? Lanes{} : 1.0f / sum_p, missed = sum_ds * factor;
  const Lanes statistics[kStatistics] = {reference, factor, delta + missed};
  store_block(pass.queries, block, statistics, {params.workspace, Storage::float32, kStatistics});
  if (!params.dq) return;
  for (int32_t c = 0; c < shape.channels; ++c) dq[c] = (dq[c] - missed * weighted_k[c]) * factor;
  store_block(pass.queries, block, dq, {params.dq, pass.storage, shape.channels});
}

void key_block(const BackwardPass& pass, const PackedGrid& statistics, const OwnerBlock& block, Lanes* dk) {
  const BackwardParams& params = pass.params;
  const Shape& shape = params.shape;
  const HeadLines q(pass.q, block.head, shape.channels), dy(pass.dy, block.head, shape.channels_out);
  const HeadLines of_query(statistics, block.head, kStatistics);
  const OwnerChannels k = owner_channels(pass.keys, block, pass.k, shape.channels);
  const OwnerChannels v = owner_channels(pass.keys, block, pass.v, shape.channels_out);
  const float weight = params.quad_weights[block.lat];
  Lanes* dv = dk + shape.channels;
  for (int32_t c = 0; c < shape.channels + shape.channels_out; ++c) dk[c] = Lanes{};
  walk(params.key_table, shape.query, block, [&]<int n>(const Partner* strip) {
    const auto statistic = [&](int i, Statistic which) {
      return load(of_query.at(strip[i].line, strip[i].x) + which * of_query.stride());
    };
    Lanes scores[n], products[n];
    dot<n>(k, q, strip, scores);
    for (int i = 0; i < n; ++i)
      scores[i] = exponential(scores[i] - statistic(i, kReference)) * weight * statistic(i, kFactor);
    if (!params.dk) return accumulate<n>(dy, strip, {scores, dv});
    if (params.dv)
      dot_and_accumulate<n>(v, dy, strip, products, {scores, dv});
    else
      dot<n>(v, dy, strip, products);
    for (int i = 0; i < n; ++i) scores[i] *= products[i] - statistic(i, kDelta);
    accumulate<n>(q, strip, {scores, dk});
  });
  if (params.dk) store_block(pass.keys, block, dk, {params.dk, pass.storage, shape.channels});
  if (params.dv) store_block(pass.keys, block, dv, {params.dv, pass.storage, shape.channels_out});
}

}  // namespace

void backward(const BackwardParams& params, Storage storage, int threads) {
  const Shape& shape = params.shape;
  const int32_t query_classes = params.query_table.residues, key_classes = params.key_table.residues;
  const int64_t features = int64_t{shape.heads} * shape.channels;
  const int64_t features_out = int64_t{shape.heads} * shape.channels_out;
  const auto pack = [&](const void* data, Grid grid, int64_t count, int32_t classes) {
    return PackedGrid({data, storage, shape.batch, grid, count, classes}, threads);
  };
  const BackwardPass pass{params,
                          storage,
                          {shape.batch, shape.query, query_classes, shape.heads},
                          {shape.batch, shape.key, key_classes, shape.heads},
                          pack(params.q, shape.query, features, query_classes),
                          pack(params.dy, shape.query, features_out, query_classes),
                          pack(params.k, shape.key, features, key_classes),
                          pack(params.v, shape.key, features_out, key_classes)};
  const Scratch scratch(threads, shape.channels + int64_t{std::max(shape.channels, shape.channels_out)});
  for_each_block(pass.queries, threads,
                 [&](const OwnerBlock& block) { query_block(pass, block, scratch.of_this_thread()); });
  if (!params.dk && !params.dv) return;
  const PackedGrid statistics({params.workspace, Storage::float32, shape.batch, shape.query,
                               int64_t{shape.heads} * kStatistics, query_classes},
                              threads);
  for_each_block(pass.keys, threads,
                 [&](const OwnerBlock& block) { key_block(pass, statistics, block, scratch.of_this_thread()); });
}

}  // namespace s2attn::cpu
