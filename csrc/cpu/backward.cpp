// Computes, with p_qk = w_k exp(q . k - lse_q), delta_q = dy_q . y_q and ds_qk = p_qk (dy_q . v_k - delta_q):
//   dq_q = sum_k ds_qk k_k      dk_k = sum_q ds_qk q_q      dv_k = sum_q p_qk dy_q
// Layout: NHWC of any storage type in and out; packed channel-major float32 in between (packed_grid.h).
// Mapping: two gathers. Sixteen queries at a time walk their keys and keep dq; sixteen keys at a time walk the queries
//   they belong to and keep dk and dv. Both recompute p from the saved log-sum-exp.
// Numerics: float32; delta is that of y as stored, so rounded; sums of an owner are formed in the order of its arcs.

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
  PackedGrid q, dy, lse, delta;  // on the query grid
  PackedGrid k, v;               // on the key grid
};

template <typename storage_t>
float inner_product(const storage_t* a, const storage_t* b, int32_t count) {
  const int32_t whole = count / 4 * 4;
  Quad sums = {};
  for (int32_t i = 0; i < whole; i += 4) sums += load_quad(a + i) * load_quad(b + i);
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (int32_t i = whole; i < count; ++i) sum += load_one(a + i) * load_one(b + i);
  return sum;
}

// Leaves delta in the workspace.
template <typename storage_t>
void compute_delta(const BackwardParams& params, int threads) {
  const Shape& shape = params.shape;
  const auto* dy = static_cast<const storage_t*>(params.dy);
  const auto* y = static_cast<const storage_t*>(params.y);
  const int64_t count = shape.batch * shape.query.nlat * shape.query.nlon * shape.heads;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = i * shape.channels_out;
    params.workspace[i] = inner_product(dy + first, y + first, shape.channels_out);
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
  store_block(pass.queries, block, dq, {params.dq, pass.storage, shape.channels});
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
  if (params.dk) store_block(pass.keys, block, dk, {params.dk, pass.storage, shape.channels});
  if (params.dv) store_block(pass.keys, block, dv, {params.dv, pass.storage, shape.channels_out});
}

}  // namespace

void backward(const BackwardParams& params, Storage storage, int threads) {
  const Shape& shape = params.shape;
  const int32_t query_classes = params.query_table.residues, key_classes = params.key_table.residues;
  const int64_t features = int64_t{shape.heads} * shape.channels;
  const int64_t features_out = int64_t{shape.heads} * shape.channels_out;
  with_storage(storage, [&]<typename storage_t>(storage_t) { compute_delta<storage_t>(params, threads); });
  const auto pack_as = [&](Storage type, const void* data, Grid grid, int64_t count, int32_t classes) {
    return PackedGrid({data, type, shape.batch, grid, count, classes}, threads);
  };
  const auto pack = [&](auto... source) { return pack_as(storage, source...); };
  const auto pack_statistic = [&](const float* data) {
    return pack_as(Storage::float32, data, shape.query, shape.heads, query_classes);
  };
  const BackwardPass pass{params,
                          storage,
                          {shape.batch, shape.query, query_classes, shape.heads},
                          {shape.batch, shape.key, key_classes, shape.heads},
                          pack(params.q, shape.query, features, query_classes),
                          pack(params.dy, shape.query, features_out, query_classes),
                          pack_statistic(params.lse),
                          pack_statistic(params.workspace),
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
