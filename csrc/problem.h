// What a kernel is asked to do, as plain values: passed by value to CPU and CUDA kernels alike, and free of torch, so
// that kernel files compile in seconds.
//
// Every direction (forward, dq; dk and dv; down- and upsampling) is ONE formulation, the gather: each point of the
// OWNER grid walks its own list of PARTNER points and keeps the sum to itself. Hence no atomics, and one fixed order
// of summation for every owner.
#pragma once

#include <cstdint>

namespace s2attn {

// The partners of all owners, compressed by the rotational symmetry of the grid.
//
// Owner (lat, lon) walks row lat * residues + lon % residues, that is the arcs arc_off[row] .. arc_off[row + 1]. An arc
// (partner latitude, first longitude, length) stands for the partner longitudes
//   (first + (lon / residues) * stride + j) mod partner_nlon,  j = 0 .. length - 1.
// One of residues and stride is 1, the other is 1 or the ratio of the longitudes (pscale).
struct GatherTable {
  const int32_t* arcs;     // [count][3]
  const int32_t* arc_off;  // [owner_nlat * residues + 1]
  int32_t residues;
  int32_t stride;
};

constexpr int kArcFields = 3;

// What q, k, v, y and their gradients are stored as. Computed in float32, as which everything else is stored.
enum class Storage { float32, float16, bfloat16 };

struct Grid {
  int32_t nlat;
  int32_t nlon;
};

// q, dq: [batch, query.nlat, query.nlon, heads * channels]
// k, dk: [batch, key.nlat, key.nlon, heads * channels]
// v, dv: [batch, key.nlat, key.nlon, heads * channels_out]
// y, dy: [batch, query.nlat, query.nlon, heads * channels_out]
// lse: [batch, query.nlat, query.nlon, heads]                   quad_weights: [key.nlat]
// All contiguous by contract; strides are never consulted.
struct Shape {
  int64_t batch;
  int32_t heads;
  int32_t channels;      // of q and k, per head
  int32_t channels_out;  // of v and y, per head
  Grid query;
  Grid key;
};

struct ForwardParams {
  Shape shape;
  GatherTable query_table;  // owners: queries; partners: keys
  const void* q;
  const void* k;
  const void* v;
  const float* quad_weights;
  void* y;
  float* lse;
  // Weights are used over 2^this, about the total weight of a neighborhood: logarithms near 0 are rounded least.
  float weight_exponent = 0.0f;
};

// Floats per query and head that a backward may leave in its workspace.
constexpr int kStatistics = 3;

struct BackwardParams {
  Shape shape;
  GatherTable query_table;
  GatherTable key_table;  // owners: keys; partners: queries
  const void* dy;
  const void* q;
  const void* k;
  const void* v;
  const void* y;
  const float* lse;
  const float* quad_weights;
  float* workspace;  // kStatistics floats per query and head
  void* dq;      // a null pointer where the gradient is not asked for
  void* dk;
  void* dv;
  float weight_exponent = 0.0f;  // as in ForwardParams
};

}  // namespace s2attn
