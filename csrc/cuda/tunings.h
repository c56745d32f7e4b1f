// The tunings: which policy serves which problems, and the measurement that says so. `python -m s2attn.benchmarks tune`
// measures a row's neighbors on the GPU at hand and writes rows to paste here.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include "policy.h"

namespace s2attn::cuda {

constexpr int kAnyArchitecture = 0;
constexpr int kAnyWidth = INT_MAX;
constexpr int64_t kAnyOctets = INT64_MAX;
constexpr int64_t kFewOctets = 8192;  // up to two heads at 1 degree
constexpr int kFirstTileArchitecture = 80;
constexpr int kFewestTileLongitudes = 8;  // of partners

constexpr unsigned storage_bit(Storage storage) { return 1u << static_cast<unsigned>(storage); }
constexpr unsigned kFloat32 = storage_bit(Storage::float32);
constexpr unsigned kFloat16 = storage_bit(Storage::float16);
constexpr unsigned kBfloat16 = storage_bit(Storage::bfloat16);
constexpr unsigned kHalf = kFloat16 | kBfloat16;

// The problems of a row.
struct Scope {
  int architecture;             // 90 for sm_90
  unsigned storages;            // union of storage_bit()
  int width;                    // of the neighborhood, at most (ProblemFacts)
  int64_t octets = kAnyOctets;  // of owners, at most
};

// Where a policy was measured against others, and what came out. All null: nowhere, the row is untuned.
struct Measurement {
  const char* gpu;
  const char* date;
  const char* source;  // the command, or the record that keeps the numbers
  const char* figure;

  constexpr bool exists() const { return gpu != nullptr; }
};

struct TileRow {
  Scope scope;
  Pass pass;
  int channels;       // per head, at most, of q and k and of v
  TilePolicy policy;  // {}: gather
  Measurement measurement;
};

inline constexpr Measurement kH200Tile{
    "NVIDIA H200", "2026-12-01", "service/decisions/0025",
    "1, 0.5, 0.25, 0.5 to 1 and 1 to 0.5 degree, cutoffs 0.017 to 0.1: with 64 channels beside fewer and more octets; "
    "blocks of the float32 forward beside one less; the rest beside all neighbors with the kernels of 0022"};

inline constexpr Measurement kH200FloatBackward{
    "NVIDIA H200", "2026-12-01", "service/decisions/0026",
    "1, 0.5, 0.25, 0.5 to 1 and 1 to 0.5 degree, cutoffs 0.017 to 0.1: with 64 channels beside fewer and more octets; "
    "dq beside one block more and, with 128 channels, twice the groups; dk and dv of 128 channels beside those of "
    "0025"};

// 45 octets of a row at 1 degree are whole blocks of 5 and of 3, of 4 they are not.
inline constexpr Measurement kH200FewOctets{
    "NVIDIA H200", "2026-12-01", "service/decisions/0026",
    "bfloat16 backward of 4 octets per block: 0.96-1.00 of its time at 1 degree, 0.97-0.98 from 1 to 0.5 degree"};

// The first row that covers a problem and fits the GPU is taken: narrow ones first, and what any GPU takes last.
//
// The rows for sm_90 are those that were timed as they stand; float16 has those of bfloat16, room for 32 channels was
// not timed.
inline constexpr TileRow kTileTable[] = {
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::forward, 32, {32, 4, 4, 4}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::backward_query, 32, {32, 4, 2, 4}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::backward_key, 32, {32, 4, 2, 3}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::forward, 32, {32, 4, 2, 3}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::backward_query, 32, {32, 4, 2, 2}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::backward_key, 32, {32, 4, 2, 2}, {}},
    {{90, kBfloat16, 7}, Pass::forward, 64, {64, 4, 2, 4}, kH200Tile},
    {{90, kBfloat16, kAnyWidth}, Pass::forward, 64, {64, 4, 4, 3}, kH200Tile},
    {{90, kBfloat16, 7, kFewOctets}, Pass::backward_query, 64, {64, 5, 2, 3}, kH200FewOctets},
    {{90, kBfloat16, 7}, Pass::backward_query, 64, {64, 4, 2, 4}, kH200Tile},
    {{90, kBfloat16, kAnyWidth}, Pass::backward_query, 64, {64, 4, 4, 3}, kH200Tile},
    {{90, kBfloat16, kAnyWidth, kFewOctets}, Pass::backward_key, 64, {64, 3, 2, 4}, kH200FewOctets},
    {{90, kBfloat16, kAnyWidth}, Pass::backward_key, 64, {64, 4, 2, 3}, kH200Tile},
    {{90, kFloat32, kAnyWidth}, Pass::forward, 64, {64, 4, 2, 3}, kH200Tile},
    {{90, kFloat32, kAnyWidth}, Pass::backward_query, 64, {64, 4, 2, 3}, kH200FloatBackward},
    {{90, kFloat32, kAnyWidth}, Pass::backward_key, 64, {64, 2, 2, 4}, kH200FloatBackward},
    {{kAnyArchitecture, kHalf, 7}, Pass::forward, 64, {64, 4, 2, 4}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::forward, 64, {64, 4, 4, 3}, {}},
    {{kAnyArchitecture, kHalf, 7, kFewOctets}, Pass::backward_query, 64, {64, 5, 2, 3}, {}},
    {{kAnyArchitecture, kHalf, 7}, Pass::backward_query, 64, {64, 4, 2, 4}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::backward_query, 64, {64, 4, 4, 3}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth, kFewOctets}, Pass::backward_key, 64, {64, 3, 2, 4}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::backward_key, 64, {64, 4, 2, 3}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::forward, 64, {64, 4, 2, 3}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::backward_query, 64, {64, 4, 2, 3}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::backward_key, 64, {64, 2, 2, 4}, {}},
    {{90, kBfloat16, kAnyWidth}, Pass::forward, 128, {128, 2, 2, 6}, kH200Tile},
    {{90, kBfloat16, kAnyWidth}, Pass::backward_query, 128, {128, 2, 2, 4}, kH200Tile},
    {{90, kBfloat16, kAnyWidth}, Pass::backward_key, 128, {128, 1, 2, 6}, kH200Tile},
    {{90, kFloat32, kAnyWidth}, Pass::forward, 128, {128, 2, 2, 3}, kH200Tile},
    {{90, kFloat32, kAnyWidth}, Pass::backward_query, 128, {128, 4, 1, 2}, kH200FloatBackward},
    {{90, kFloat32, kAnyWidth}, Pass::backward_key, 128, {128, 2, 2, 2}, kH200FloatBackward},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::forward, 128, {128, 2, 2, 6}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::backward_query, 128, {128, 2, 2, 4}, {}},
    {{kAnyArchitecture, kHalf, kAnyWidth}, Pass::backward_key, 128, {128, 1, 2, 6}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::forward, 128, {128, 2, 2, 3}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::backward_query, 128, {128, 4, 1, 2}, {}},
    {{kAnyArchitecture, kFloat32, kAnyWidth}, Pass::backward_key, 128, {128, 2, 2, 2}, {}},
};

struct GatherRow {
  Scope scope;
  GatherPolicy policy;
  Measurement measurement;
};

inline constexpr Measurement kH200Gather{
    "NVIDIA H200", "2026-11", "commit 72b210a",
    "C = 64: 2 partners in flight and 4 warps per block are 0-14 % faster than 4 in flight, "
    "10-84 % faster than 8 warps"};

constexpr unsigned kAllStorages = kFloat32 | kHalf;
inline constexpr GatherPolicy kSharedMemoryPolicy{1, 32, 0};

// Narrowest first: the first that fits leaves the fewest lanes without a channel.
inline constexpr GatherRow kGatherTable[] = {
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, {4, 4, 1}, {}},
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, {4, 8, 1}, {}},
    {{90, kFloat32, 7}, {4, 16, 1}, kH200Gather},
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, {4, 16, 1}, {}},
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, {4, 32, 1}, {}},
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, {1, 8, 1}, {}},
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, {1, 32, 2}, {}},
    {{kAnyArchitecture, kAllStorages, kAnyWidth}, kSharedMemoryPolicy, {}},
};

// Whether every problem of the inner scope is one of the outer.
constexpr bool covers(const Scope& outer, const Scope& inner) {
  return (outer.architecture == kAnyArchitecture || outer.architecture == inner.architecture) &&
         (inner.storages & ~outer.storages) == 0 && inner.width <= outer.width && inner.octets <= outer.octets;
}

// A measurement is of one architecture, a row for any has none; and no row stands behind one that takes all it would.
constexpr bool tile_table_is_sound() {
  for (const TileRow& row : kTileTable) {
    if (row.measurement.exists() == (row.scope.architecture == kAnyArchitecture)) return false;
    for (const Storage storage : {Storage::float32, Storage::float16, Storage::bfloat16})
      if ((row.scope.storages & storage_bit(storage)) && row.policy.exists() &&
          (row.channels > row.policy.channels || !can_be_compiled(row.policy, storage, row.pass)))
        return false;
    for (const TileRow* before = kTileTable; before != &row; ++before)
      if (before->pass == row.pass && before->channels >= row.channels && covers(before->scope, row.scope))
        return false;
  }
  return true;
}
static_assert(tile_table_is_sound());

// Tiles that kernels exist for, each once.
struct TileList {
  TilePolicy tiles[128] = {};
  int count = 0;

  constexpr bool holds(const TilePolicy& tile) const {
    for (int i = 0; i < count; ++i)
      if (tiles[i] == tile) return true;
    return false;
  }
  constexpr void add(const TilePolicy& tile) {
    if (!holds(tile)) tiles[count++] = tile;
  }
};

// Adds what differs from a tile by one step of one number. Blocks of more or fewer warps share out the same registers.
constexpr void add_neighbors(TileList& list, const TilePolicy& tile, Storage storage, Pass pass) {
  TilePolicy steps[6] = {tile, tile, tile, tile, tile, tile};
  steps[0].octets *= 2;
  steps[1].octets /= 2;
  for (TilePolicy* step : {&steps[0], &steps[1]})
    if (step->octets > 0) step->blocks = std::max(tile.octets * tile.blocks / step->octets, 1);
  steps[2].groups *= 2;
  steps[3].groups /= 2;
  steps[4].blocks += 1;
  steps[5].blocks -= 1;
  for (const TilePolicy& step : steps)
    if (can_be_compiled(step, storage, pass)) list.add(step);
}

// Builds for tuning hold the neighbors of every row too (S2ATTN_CUDA_TUNING of s2attn/toolchain.py).
#ifdef S2ATTN_TUNING
constexpr bool kHoldsNeighbors = true;
#else
constexpr bool kHoldsNeighbors = false;
#endif

constexpr TileList compiled_tiles(Storage storage, Pass pass) {
  TileList list;
  const auto visit = [&](const auto& visitor) {
    for (const TileRow& row : kTileTable)
      if (row.pass == pass && (row.scope.storages & storage_bit(storage)) && row.policy.exists()) visitor(row.policy);
  };
  visit([&](const TilePolicy& tile) { list.add(tile); });
  if (kHoldsNeighbors) visit([&](const TilePolicy& tile) { add_neighbors(list, tile, storage, pass); });
  return list;
}

}  // namespace s2attn::cuda
