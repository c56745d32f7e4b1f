// The partners of a block of neighboring owners as a stream of rows, and its way through shared memory.
//
// Owners that follow each other along a row of the gather table have the same arcs, shifted by the table's stride, and
// adjacent rows have nearly the same. So a block takes 2 * kPairs table rows times 8 * kOctets columns, and for every
// partner latitude the union of their arcs: one strip of consecutive longitudes, loaded once for all of them. The strips
// follow each other in the stream, which passes through kStages buffers of kStageRows rows.
//
//   columns        m0 .. +7        +8 .. +15
//   row r0      |            |            |          a warp has 16 owners: 8 columns of 2 rows
//   row r0 + 1  |   warp 0   |   warp 1   |
//   row r0 + 2  |            |            |
//   row r0 + 3  |   warp 2   |   warp 3   |
//
// Of a strip, a warp multiplies the window that its own owners reach, in groups of 8; what of it lies outside an
// owner's arc is masked.
#pragma once

#include <cstdint>

#include "../../problem.h"
#include "tensor_cores.cuh"
#include "warp.cuh"

namespace s2attn::cuda {

template <int kPairs_, int kOctets_, int kStageRows_, int kStages_>
struct TileLayout {
  static constexpr int kPairs = kPairs_;
  static constexpr int kOctets = kOctets_;
  static constexpr int kStageRows = kStageRows_;
  static constexpr int kStages = kStages_;
  static constexpr int kRows = 2 * kPairs;      // of the gather table
  static constexpr int kColumns = 8 * kOctets;  // owners of each
  static constexpr int kThreads = kPairs * kOctets * kWarp;
};

// A block's owners: table rows row .. row + kRows - 1, columns column .. column + kColumns - 1 of each.
struct TileOwners {
  int64_t batch;
  int32_t head;
  int32_t row;
  int32_t column;
};

__host__ __device__ inline int32_t table_rows(const GatherTable& table, Grid owners) {
  return owners.nlat * table.residues;
}
__host__ __device__ inline int32_t table_columns(const GatherTable& table, Grid owners) {
  return owners.nlon / table.residues;
}

template <typename Layout>
__host__ __device__ inline uint32_t tiles_per_head(const GatherTable& table, Grid owners) {
  const uint32_t down = (table_rows(table, owners) + Layout::kRows - 1) / Layout::kRows;
  return down * ((table_columns(table, owners) + Layout::kColumns - 1) / Layout::kColumns);
}

// Rows alternate between the poles, from there to the equator: the longest strips start first.
template <typename Layout>
__device__ TileOwners find_tile(const Shape& shape, const GatherTable& table, Grid owners) {
  const uint32_t down = (table_rows(table, owners) + Layout::kRows - 1) / Layout::kRows;
  const uint32_t across = (table_columns(table, owners) + Layout::kColumns - 1) / Layout::kColumns;
  uint32_t index = blockIdx.x;
  const uint32_t column = index % across;
  index /= across;
  const uint32_t head = index % shape.heads;
  index /= shape.heads;
  const uint32_t batch = index % static_cast<uint32_t>(shape.batch);
  const uint32_t rank = index / static_cast<uint32_t>(shape.batch);
  const uint32_t row = rank % 2 ? down - 1 - rank / 2 : rank / 2;
  return {batch, static_cast<int32_t>(head), static_cast<int32_t>(row * Layout::kRows),
          static_cast<int32_t>(column * Layout::kColumns)};
}

// Owner i (0 or 1) of this lane: row lane / 4 + 8 * i of its warp's tile. Point -1 where there is none.
struct LaneOwner {
  int32_t row;     // of the block's table rows
  int32_t column;  // of the block's columns
  int64_t point;   // (batch, lat, lon) flattened
};

template <typename Layout>
__device__ LaneOwner lane_owner(const TileOwners& tile, const GatherTable& table, Grid owners, int i) {
  const int warp = threadIdx.x / kWarp;
  LaneOwner owner{warp / Layout::kOctets * 2 + i, warp % Layout::kOctets * 8 + lane_index() / 4, -1};
  const int32_t row = tile.row + owner.row, column = tile.column + owner.column;
  if (row >= table_rows(table, owners) || column >= table_columns(table, owners)) return owner;
  const int32_t lon = column * table.residues + row % table.residues;
  owner.point = (tile.batch * owners.nlat + row / table.residues) * owners.nlon + lon;
  return owner;
}

constexpr int kPlanStrips = 32;  // planned at a time, by one warp: a lane per partner latitude

// The strips of up to kPlanStrips latitudes, in shared memory.
template <typename Layout>
struct StripPlan {
  struct Strip {
    int32_t first_point;  // of its latitude
    int32_t first_lon;
    int32_t begin;  // its first row of the stream
    int32_t full;   // whether it is the whole circle
  };
  struct Arc {
    int32_t offset;  // from the strip's first longitude to the arc of the row's first owner
    int32_t length;  // 0: none
  };
  Strip strips[kPlanStrips + 1];  // the last one ends the stream
  Arc arcs[Layout::kRows][kPlanStrips];
  float weights[kPlanStrips];  // log2 of the latitude's quadrature weight
  int32_t ranges[Layout::kRows][2];
};

// Arc number `ordinal` of a table row on a latitude, {0, 0} without; `more` where another one follows.
struct FoundArc {
  int32_t first;
  int32_t length;
  bool more;
};

__device__ inline FoundArc find_arc(const GatherTable& table, int32_t row, int32_t lat, int ordinal) {
  const int32_t begin = table.arc_off[row], end = table.arc_off[row + 1];
  if (begin == end) return {0, 0, false};
  // nearly always there is one arc per latitude, and this guess is right
  int32_t low = min(max(begin + lat - table.arcs[int64_t{begin} * kArcFields], begin), end - 1);
  const bool right = table.arcs[int64_t{low} * kArcFields] == lat &&
                     (low == begin || table.arcs[int64_t{low - 1} * kArcFields] < lat);
  if (!right) {
    int32_t high = end;
    for (low = begin; low < high;) {
      const int32_t middle = (low + high) / 2;
      if (table.arcs[int64_t{middle} * kArcFields] < lat) low = middle + 1;
      else high = middle;
    }
  }
  low += ordinal;
  if (low >= end || table.arcs[int64_t{low} * kArcFields] != lat) return {0, 0, false};
  const int32_t* arc = table.arcs + int64_t{low} * kArcFields;
  return {arc[1], arc[2], low + 1 < end && arc[kArcFields] == lat};
}

struct StripSource {
  const GatherTable& table;
  Grid partners;
  int32_t rows;  // of the table
  const float* quad_weights;  // of the partners' latitudes; null: no weights
};

// Plans the strips of latitudes first_lat + lane; by one warp. Returns whether a row has more arcs there than ordinal.
template <typename Layout>
__device__ bool plan_strips(StripPlan<Layout>& plan, const StripSource& source, const TileOwners& tile,
                            int32_t first_lat, int ordinal) {
  const int32_t nlon = source.partners.nlon, lat = first_lat + lane_index();
  const int32_t shift = tile.column * source.table.stride;
  FoundArc found[Layout::kRows];
  int32_t low = nlon, high = -nlon;
  bool full = false, more = false;
#pragma unroll
  for (int r = 0; r < Layout::kRows; ++r) {
    found[r] = {0, 0, false};
    if (lat < source.partners.nlat && tile.row + r < source.rows)
      found[r] = find_arc(source.table, tile.row + r, lat, ordinal);
    more = more || found[r].more;
    if (found[r].length == 0) continue;
    full = full || found[r].length == nlon;
    if (found[r].first > nlon / 2) found[r].first -= nlon;  // arcs lie around longitude 0: let them not wrap there
    low = min(low, found[r].first);
    high = max(high, found[r].first + found[r].length);
  }
  int32_t length = high < low ? 0 : high - low + (Layout::kColumns - 1) * source.table.stride;
  full = full || length >= nlon;
  if (full) length = nlon;
  const auto wrapped = [nlon](int32_t lon) { return lon < 0 ? lon + nlon : lon >= nlon ? lon - nlon : lon; };
#pragma unroll
  for (int r = 0; r < Layout::kRows; ++r)
    plan.arcs[r][lane_index()] = {full ? wrapped(found[r].first + shift) : found[r].first - low, found[r].length};
  int32_t end = length;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int32_t before = __shfl_up_sync(kFullMask, end, offset);
    if (lane_index() >= offset) end += before;
  }
  plan.strips[lane_index()] = {lat * nlon, full || length == 0 ? 0 : wrapped(low + shift), end - length, full};
  if (lane_index() == kWarp - 1) plan.strips[kPlanStrips].begin = end;
  plan.weights[lane_index()] =
      length > 0 && source.quad_weights ? log2f(source.quad_weights[lat]) : 0.0f;
  return __any_sync(kFullMask, more);
}

// Rows of the stream in shared memory: of two tensors, and two statistics of every row where kStatistics.
template <typename Layout, typename storage_t, int kChannels, bool kStatistics>
struct StageMemory {
  static constexpr int kRowBytes = tile_row_bytes<storage_t, kChannels>();
  // a group that begins at the last row reads 7 rows further
  static constexpr int kTensorBytes = (Layout::kStageRows + kGroupColumns - 1) * kRowBytes;
  static constexpr int kStatisticsBytes = kStatistics ? (Layout::kStageRows + kGroupColumns) * 8 : 0;
  static constexpr int kStageBytes = 2 * kTensorBytes + kStatisticsBytes;
  static constexpr int kPlanBytes = (sizeof(StripPlan<Layout>) + 15) / 16 * 16;
  static constexpr int kBytes = kPlanBytes + Layout::kStages * kStageBytes;

  char* memory;

  __device__ StripPlan<Layout>& plan() const { return *reinterpret_cast<StripPlan<Layout>*>(memory); }
  __device__ char* stage(int index) const { return memory + kPlanBytes + index % Layout::kStages * kStageBytes; }

  // Rows that were never loaded are multiplied by zero: they must not be NaN.
  __device__ void clear() const {
    for (int i = threadIdx.x * 16; i < Layout::kStages * kStageBytes; i += Layout::kThreads * 16)
      *reinterpret_cast<int4*>(memory + kPlanBytes + i) = int4{};
  }
};

__device__ inline void copy_async_16(uint32_t target, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(exists ? 16 : 0));
}
__device__ inline void copy_async_8(uint32_t target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(target), "l"(source));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// A tensor of partners: its first point of the batch and head, elements from one point to the next, channels.
template <typename storage_t>
struct PartnerTensor {
  const storage_t* first;
  int64_t pitch;
  int32_t channels;
};

template <typename storage_t>
struct PartnerTensors {
  PartnerTensor<storage_t> tensors[2];
  const float2* statistics;  // of the batch and head, or null
  int32_t statistics_pitch;
};

// Copies the rows of one stage; `strip` is a cursor that only advances.
template <typename Layout, typename storage_t, int kChannels, bool kStatistics>
__device__ void copy_stage(const StageMemory<Layout, storage_t, kChannels, kStatistics>& memory,
                           const PartnerTensors<storage_t>& partners, int32_t nlon, int stage, int& strip) {
  constexpr int kPacket = 16 / sizeof(storage_t);
  constexpr int kPackets = kChannels / kPacket;
  const StripPlan<Layout>& plan = memory.plan();
  const int32_t begin = stage * Layout::kStageRows;
  const int32_t end = min(begin + Layout::kStageRows, plan.strips[kPlanStrips].begin);
  const int packet = threadIdx.x % kPackets;
  const uint32_t target = shared_address(memory.stage(stage)) + packet * 16;
  for (int32_t row = begin + threadIdx.x / kPackets; row < end; row += Layout::kThreads / kPackets) {
    while (row >= plan.strips[strip + 1].begin) ++strip;
    const auto& from = plan.strips[strip];
    int32_t lon = from.first_lon + row - from.begin;
    if (lon >= nlon) lon -= nlon;
    const int64_t point = from.first_point + lon;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const PartnerTensor<storage_t>& tensor = partners.tensors[i];
      const bool exists = packet * kPacket < tensor.channels;
      copy_async_16(target + i * memory.kTensorBytes + (row - begin) * memory.kRowBytes,
                    tensor.first + (exists ? point * tensor.pitch + packet * kPacket : 0), exists);
    }
    if (kStatistics && packet == 0)
      copy_async_8(target + 2 * memory.kTensorBytes + (row - begin) * 8,
                   partners.statistics + point * partners.statistics_pitch);
  }
}

// Columns of a step that are partners of this lane's two owners.
struct ColumnMask {
  int32_t first[2];
  uint32_t length[2];
  bool inverted[2];  // the partners are all columns but those
  int32_t end;       // columns of the stage that hold rows of this strip

  __device__ bool holds(int32_t column, int i) const {
    return ((static_cast<uint32_t>(column - first[i]) < length[i]) != inverted[i]) && column < end;
  }
};

template <typename Layout>
struct LaneColumns {
  int32_t row[2];    // table rows of the lane's owners, within the block
  int32_t shift[2];  // of their arcs, in longitudes
  bool exists[2];
};

// What a warp has to do with one strip: the columns (rows of the stage) of its window, masked per owner.
struct Window {
  int32_t begin;
  int32_t end;
};

template <typename Layout>
__device__ Window warp_window(const StripPlan<Layout>& plan, int strip, int32_t nlon, int32_t stride) {
  const int warp = threadIdx.x / kWarp;
  if (plan.strips[strip].full) return {0, nlon};
  const auto first = plan.arcs[warp / Layout::kOctets * 2][strip];
  const auto second = plan.arcs[warp / Layout::kOctets * 2 + 1][strip];
  if (first.length == 0 && second.length == 0) return {0, 0};
  const int32_t low = first.length == 0    ? second.offset
                      : second.length == 0 ? first.offset
                                           : min(first.offset, second.offset);
  const int32_t high = max(first.length ? first.offset + first.length : 0,
                           second.length ? second.offset + second.length : 0);
  const int32_t shift = warp % Layout::kOctets * 8 * stride;
  return {low + shift, high + shift + 7 * stride};
}

template <typename Layout>
__device__ ColumnMask lane_mask(const StripPlan<Layout>& plan, int strip, const LaneColumns<Layout>& lane,
                                int32_t nlon, int32_t origin) {
  ColumnMask mask;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto arc = plan.arcs[lane.row[i]][strip];
    int32_t first = arc.offset + lane.shift[i];
    int32_t length = lane.exists[i] ? arc.length : 0;
    mask.inverted[i] = false;
    if (plan.strips[strip].full && length > 0) {
      if (first >= nlon) first -= nlon;
      if (first + length > nlon) {  // around the end of the strip: say which columns are not partners
        mask.inverted[i] = true;
        first += length - nlon;
        length = nlon - length;
      }
    }
    mask.first[i] = first + origin;
    mask.length[i] = length;
  }
  return mask;
}

// Calls step.template operator()<groups>(stage memory, first column, mask, log2 of the weight) until every window of the
// stage is covered, with kGroups groups of columns at a time or, at the end of a window, fewer.
template <int kGroups, typename Layout, typename storage_t, int kChannels, bool kStatistics, typename Step>
__device__ void visit_stage(const StageMemory<Layout, storage_t, kChannels, kStatistics>& memory, int stage,
                            const StripSource& source, const LaneColumns<Layout>& lane, int& strip, const Step& step) {
  const StripPlan<Layout>& plan = memory.plan();
  const int32_t begin = stage * Layout::kStageRows, end = begin + Layout::kStageRows;
  const int32_t nlon = source.partners.nlon;
  while (strip < kPlanStrips && plan.strips[strip + 1].begin <= begin) ++strip;
  for (int s = strip; s < kPlanStrips && plan.strips[s].begin < end; ++s) {
    const int32_t origin = plan.strips[s].begin - begin;  // of the strip, in columns of the stage
    const Window window = warp_window(plan, s, nlon, source.table.stride);
    int32_t column = max(window.begin + origin, 0);
    const int32_t last = min(window.end + origin, Layout::kStageRows);
    if (column >= last) continue;
    ColumnMask mask = lane_mask(plan, s, lane, nlon, origin);
    mask.end = last;
    const float weight = plan.weights[s];
    char* rows = memory.stage(stage);
    while (column + (kGroups - 1) * kGroupColumns < last) {
      step.template operator()<kGroups>(rows, column, mask, weight);
      column += kGroups * kGroupColumns;
    }
    if constexpr (kGroups > 2)
      if (column + kGroupColumns < last) {
        step.template operator()<2>(rows, column, mask, weight);
        column += 2 * kGroupColumns;
      }
    if (column < last) step.template operator()<1>(rows, column, mask, weight);
  }
}

// Streams all strips of the block's owners through shared memory. All threads take part.
template <int kGroups, typename Layout, typename storage_t, int kChannels, bool kStatistics, typename Step>
__device__ void stream_strips(const StageMemory<Layout, storage_t, kChannels, kStatistics>& memory,
                              const StripSource& source, const PartnerTensors<storage_t>& partners,
                              const TileOwners& tile, const LaneColumns<Layout>& lane, const Step& step) {
  StripPlan<Layout>& plan = memory.plan();
  if (threadIdx.x < Layout::kRows) {
    const int32_t row = tile.row + threadIdx.x;
    const bool exists = row < source.rows && source.table.arc_off[row] < source.table.arc_off[row + 1];
    plan.ranges[threadIdx.x][0] =
        exists ? source.table.arcs[int64_t{source.table.arc_off[row]} * kArcFields] : INT32_MAX;
    plan.ranges[threadIdx.x][1] =
        exists ? source.table.arcs[int64_t{source.table.arc_off[row + 1] - 1} * kArcFields] : -1;
  }
  memory.clear();
  __syncthreads();
  int32_t lat = INT32_MAX, last_lat = -1;
#pragma unroll
  for (int r = 0; r < Layout::kRows; ++r) {
    lat = min(lat, plan.ranges[r][0]);
    last_lat = max(last_lat, plan.ranges[r][1]);
  }
  int ordinal = 0;
  while (lat <= last_lat) {
    bool more = false;
    if (threadIdx.x < kWarp) more = plan_strips(plan, source, tile, lat, ordinal);
    more = __syncthreads_or(more);
    const int stages = (plan.strips[kPlanStrips].begin + Layout::kStageRows - 1) / Layout::kStageRows;
    int copied = 0, visited = 0;  // cursors
    for (int ahead = 0; ahead < Layout::kStages - 1; ++ahead) {
      if (ahead < stages) copy_stage(memory, partners, source.partners.nlon, ahead, copied);
      commit_copies();
    }
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<Layout::kStages - 2>();
      __syncthreads();
      if (stage + Layout::kStages - 1 < stages)
        copy_stage(memory, partners, source.partners.nlon, stage + Layout::kStages - 1, copied);
      commit_copies();
      visit_stage<kGroups>(memory, stage, source, lane, visited, step);
    }
    __syncthreads();
    ordinal = more ? ordinal + 1 : 0;
    if (!more) lat += kPlanStrips;
  }
}

}  // namespace s2attn::cuda
