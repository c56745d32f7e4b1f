// Computes, with p_qk = w_k exp(q . k - lse_q), delta_q = dy_q . y_q and ds_qk = p_qk (dy_q . v_k - delta_q):
//   dq_q = sum_k ds_qk k_k      dk_k = sum_q ds_qk q_q      dv_k = sum_q p_qk dy_q
// Layout: NHWC in and out; packed channel-major in between (packed_grid.h).
// Mapping: two gathers. Sixteen queries at a time walk their keys and keep dq; sixteen keys at a time walk the queries
//   they belong to and keep dk and dv. Both recompute p from the saved log-sum-exp.
// Numerics: float32; the sums of an owner are formed in the order of its arcs.

#include "blocks.h"
#include "kernels.h"
#include "packed_grid.h"
#include "strips.h"

namespace s2attn::cpu {
namespace {

struct BackwardPass {
  const BackwardParams& params;
  Owners queries;
  Owners keys;
  PackedGrid q, dy, lse, delta;  // on the query grid
  PackedGrid k, v;               // on the key grid
};

void compute_delta(const BackwardParams& params, int threads) {
  const Shape& shape = params.shape;
  const auto* dy = static_cast<const float*>(params.dy);
  const auto* y = static_cast<const float*>(params.y);
  const int64_t count = shape.batch * shape.query.nlat * shape.query.nlon * shape.heads;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t c = 0; c < shape.channels_out; ++c)
      sum += dy[i * shape.channels_out + c] * y[i * shape.channels_out + c];
    params.delta[i] = sum;
  }
}

void query_block(const BackwardPass& pass, const OwnerBlock& block, Lanes* dq) {
  const BackwardParams& params = pass.params;
  const Shape& shape = params.shape;
  const HeadLines k(pass.k, block.head, shape.channels), v(pass.v, block.head, shape.channels_out);
  const OwnerChannels q = owner_channels(pass.queries, block, pass.q, shape.channels);
  const OwnerChannels dy = owner_channels(pass.queries, block, pass.dy, shape.channels_out);
  const Lanes lse = load(owner_channels(pass.queries, block, pass.lse, 1).first);
  const Lanes delta = load(owner_channels(pass.queries, block, pass.delta, 1).first);
  for (int32_t c = 0; c < shape.channels; ++c) dq[c] = Lanes{};
  walk(params.query_table, shape.key, block, [&]<int n>(const Partner* strip) {
    Lanes scores[n], products[n];
    dot<n>(q, k, strip, scores);
    dot<n>(dy, v, strip, products);
    for (int i = 0; i < n; ++i)
      scores[i] = exponential(scores[i] - lse) * params.quad_weights[strip[i].lat] * (products[i] - delta);
    accumulate<n>(k, strip, scores, dq);
  });
  store_block(pass.queries, block, dq, static_cast<float*>(params.dq), shape.channels);
}

void key_block(const BackwardPass& pass, const OwnerBlock& block, Lanes* dk) {
  const BackwardParams& params = pass.params;
  const Shape& shape = params.shape;
  const HeadLines q(pass.q, block.head, shape.channels), dy(pass.dy, block.head, shape.channels_out);
  const HeadLines lse(pass.lse, block.head, 1), delta(pass.delta, block.head, 1);
  const OwnerChannels k = owner_channels(pass.keys, block, pass.k, shape.channels);
  const OwnerChannels v = owner_channels(pass.keys, block, pass.v, shape.channels_out);
  const float weight = params.quad_weights[block.lat];
  Lanes* dv = dk + shape.channels;
  for (int32_t c = 0; c < shape.channels + shape.channels_out; ++c) dk[c] = Lanes{};
  walk(params.key_table, shape.query, block, [&]<int n>(const Partner* strip) {
    Lanes scores[n], products[n];
    dot<n>(k, q, strip, scores);
    for (int i = 0; i < n; ++i) scores[i] = exponential(scores[i] - load(lse.at(strip[i].line, strip[i].x))) * weight;
    if (params.dv) accumulate<n>(dy, strip, scores, dv);
    if (!params.dk) return;
    dot<n>(v, dy, strip, products);
    for (int i = 0; i < n; ++i) scores[i] *= products[i] - load(delta.at(strip[i].line, strip[i].x));
    accumulate<n>(q, strip, scores, dk);
  });
  if (params.dk) store_block(pass.keys, block, dk, static_cast<float*>(params.dk), shape.channels);
  if (params.dv) store_block(pass.keys, block, dv, static_cast<float*>(params.dv), shape.channels_out);
}

}  // namespace

void backward(BackwardParams params, int threads) {
  const Shape& shape = params.shape;
  const int32_t query_classes = params.query_table.residues, key_classes = params.key_table.residues;
  const int64_t features = int64_t{shape.heads} * shape.channels;
  const int64_t features_out = int64_t{shape.heads} * shape.channels_out;
  compute_delta(params, threads);
  const auto pack = [&](const void* data, Grid grid, int64_t count, int32_t classes) {
    return PackedGrid({static_cast<const float*>(data), shape.batch, grid, count, classes}, threads);
  };
  const BackwardPass pass{params,
                          {shape.batch, shape.query, query_classes, shape.heads},
                          {shape.batch, shape.key, key_classes, shape.heads},
                          pack(params.q, shape.query, features, query_classes),
                          pack(params.dy, shape.query, features_out, query_classes),
                          pack(params.lse, shape.query, shape.heads, query_classes),
                          pack(params.delta, shape.query, shape.heads, query_classes),
                          pack(params.k, shape.key, features, key_classes),
                          pack(params.v, shape.key, features_out, key_classes)};
  const Scratch scratch(threads, int64_t{shape.channels} + shape.channels_out);
  if (params.dq)
    for_each_block(pass.queries, threads,
                   [&](const OwnerBlock& block) { query_block(pass, block, scratch.of_this_thread()); });
  if (params.dk || params.dv)
    for_each_block(pass.keys, threads,
                   [&](const OwnerBlock& block) { key_block(pass, block, scratch.of_this_thread()); });
}

}  // namespace s2attn::cpu
