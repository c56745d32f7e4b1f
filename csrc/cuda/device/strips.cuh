// The partners of a block of neighboring owners as a stream of rows, and its way through shared memory.
//
// Owners that follow each other along a row of the gather table have the same arcs, shifted by the table's stride, and
// the next row has nearly the same. So a block takes two table rows times 8 * kOctets columns, and for every partner
// latitude the union of their arcs: one strip of consecutive longitudes, loaded once for all of them (a whole circle is
// a strip that goes round a little more than once). The strips follow each other in the stream, which passes through
// kStages buffers of kStageRows rows.
// A warp has 16 owners, 8 columns of both rows (drawn in csrc/README.md). Near the poles, where a row of owners has
// many times the partners of others, a block may have 8 columns only, and its warps a share of the partners each.
//
// Of a strip, a warp multiplies the window that its own owners reach, in groups of 8 columns; what of it lies outside
// an owner's arc is masked.
#pragma once

#include <cstdint>

#include "../../problem.h"
#include "tensor_cores.cuh"
#include "warp.cuh"

namespace s2attn::cuda {

constexpr int kTileRows = 2;  // of the gather table
constexpr int kOctet = 8;

template <int kOctets_, int kStageRows_, int kStages_>
struct TileLayout {
  static constexpr int kOctets = kOctets_;
  static constexpr int kStageRows = kStageRows_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = kOctets * kWarp;
};

// A block's owners: columns column .. column + kColumns - 1 of the table rows row and row + 1. Its warps have an octet
// of columns each; or, where kSharing, all of them the same octet and a share of its partners.
template <typename Layout, bool kSharing>
struct TileOwners {
  static constexpr int kColumns = kSharing ? kOctet : kOctet * Layout::kOctets;
  static constexpr int kShares = kSharing ? Layout::kOctets : 1;

  int64_t batch;
  int32_t head;
  int32_t row;
  int32_t column;

  static __device__ int octet() { return kSharing ? 0 : threadIdx.x / kWarp; }
  static __device__ int share() { return kSharing ? threadIdx.x / kWarp : 0; }
};

__host__ __device__ inline int32_t table_rows(const GatherTable& table, Grid owners) {
  return owners.nlat * table.residues;
}
__host__ __device__ inline int32_t table_columns(const GatherTable& table, Grid owners) {
  return owners.nlon / table.residues;
}
__host__ __device__ inline uint32_t tiles_down(const GatherTable& table, Grid owners) {
  return (table_rows(table, owners) + kTileRows - 1) / kTileRows;
}
__host__ __device__ inline uint32_t tiles_across(const GatherTable& table, Grid owners, int columns) {
  return (table_columns(table, owners) + columns - 1) / columns;
}

// Blocks of the first ranks of tile rows, counted from both poles in turns, whose warps share an octet.
__host__ __device__ inline uint32_t sharing_blocks(const Shape& shape, const GatherTable& table, Grid owners,
                                                   uint32_t ranks) {
  return ranks * tiles_across(table, owners, kOctet) * shape.heads * static_cast<uint32_t>(shape.batch);
}

// Rows alternate between the poles, from there to the equator: the longest strips start first.
template <typename Owners>
__device__ Owners find_tile(const Shape& shape, const GatherTable& table, Grid owners, uint32_t index,
                            uint32_t first_rank) {
  const uint32_t down = tiles_down(table, owners);
  const uint32_t across = tiles_across(table, owners, Owners::kColumns);
  const uint32_t column = index % across;
  index /= across;
  const uint32_t head = index % shape.heads;
  index /= shape.heads;
  const uint32_t batch = index % static_cast<uint32_t>(shape.batch);
  const uint32_t rank = index / static_cast<uint32_t>(shape.batch) + first_rank;
  const uint32_t row = rank % 2 ? down - 1 - rank / 2 : rank / 2;
  return {batch, static_cast<int32_t>(head), static_cast<int32_t>(row * kTileRows),
          static_cast<int32_t>(column * Owners::kColumns)};
}

// A call, so that the registers of the usual path are not given up for the other one's.
template <typename Owners, typename Visit>
__device__ __noinline__ void visit_apart(const Owners& tile, const Visit& visit) {
  visit(tile);
}

// Calls visit(tile) with this block's owners. sharing_ranks: of tile rows, whose blocks come first.
template <typename Layout, typename Visit>
__device__ void with_owners(const Shape& shape, const GatherTable& table, Grid owners, uint32_t sharing_ranks,
                            const Visit& visit) {
  const uint32_t sharing = sharing_blocks(shape, table, owners, sharing_ranks);
  if (blockIdx.x < sharing)
    visit_apart(find_tile<TileOwners<Layout, true>>(shape, table, owners, blockIdx.x, 0), visit);
  else
    visit(find_tile<TileOwners<Layout, false>>(shape, table, owners, blockIdx.x - sharing, sharing_ranks));
}

// Owner i (0 or 1) of this lane: row lane / 4 + 8 * i of its warp's tile. Returns its point, (batch, lat, lon)
// flattened, or -1 where there is none.
template <typename Owners>
__device__ int64_t lane_owner(const Owners& tile, const GatherTable& table, Grid owners, int i) {
  const int32_t row = tile.row + i, column = tile.column + tile.octet() * kOctet + lane_index() / 4;
  if (row >= table_rows(table, owners) || column >= table_columns(table, owners)) return -1;
  const int32_t lon = column * table.residues + row % table.residues;
  return (tile.batch * owners.nlat + row / table.residues) * owners.nlon + lon;
}

constexpr uint32_t kNoPoint = 0xffffffffu;
constexpr int kPlanStrips = 32;  // planned at a time, by one warp: a lane per partner latitude

// The strips of up to kPlanStrips latitudes, in shared memory.
template <typename Layout>
struct StripPlan {
  struct alignas(16) Strip {
    int32_t first_point;  // of its latitude
    int32_t first_lon;
    int32_t begin;  // its first row of the stream
    float weight;   // of the latitude, as StripSource has it
  };
  // Arcs of the table rows, for their owners in the block's first column: longitudes counted from the strip's first
  // one.
  struct alignas(16) Arcs {
    int32_t first[2];
    int32_t last[2];  // one beyond; not above first: no partners there
  };
  struct alignas(8) Window {
    int32_t begin;
    int32_t end;
  };
  Strip strips[kPlanStrips + 1];  // the last one ends the stream
  Arcs arcs[kPlanStrips];
  Window windows[kPlanStrips];                           // union of the two arcs
  uint32_t points[Layout::kStages][Layout::kStageRows];  // partner of every row of the stages to copy, or kNoPoint
  bool last;                                             // no latitude remains
};

struct StripSource {
  const GatherTable& table;
  Grid partners;
  int32_t rows;               // of the table
  const float* quad_weights;  // of the partners' latitudes; null: no weights
  float weight_scale;         // what they are multiplied by
  bool logarithms;            // whether steps get the logarithms to base 2 of that
};

struct FoundArc {
  int32_t first;
  int32_t length;  // 0: none
  bool more;       // another one follows on the same latitude
};

// The arcs of one table row: begin .. end - 1, from first_lat to last_lat.
struct ArcRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t first_lat = INT32_MAX;
  int32_t last_lat = -1;
};

// Arc number `ordinal` of a row's arcs that lies on a latitude.
__device__ inline FoundArc find_arc(const int32_t* arcs, const ArcRange& row, int32_t lat, int ordinal) {
  const auto latitude = [arcs](int32_t i) { return arcs[int64_t{i} * kArcFields]; };
  int32_t low = row.begin;
  for (int32_t high = row.end; low < high;) {
    const int32_t middle = (low + high) / 2;
    if (latitude(middle) < lat)
      low = middle + 1;
    else
      high = middle;
  }
  low += ordinal;
  if (low >= row.end || latitude(low) != lat) return {0, 0, false};
  const int32_t* arc = arcs + int64_t{low} * kArcFields;
  return {arc[1], arc[2], low + 1 < row.end && arc[kArcFields] == lat};
}

// Arc number `ordinal` on a latitude of both rows. Nearly always there is one arc per latitude: where it would be then
// is read first, for both rows at once, since every step of a search waits for memory.
__device__ inline void find_arcs(const int32_t* arcs, const ArcRange (&rows)[kTileRows], int32_t lat, int ordinal,
                                 FoundArc (&found)[kTileRows]) {
  int32_t fields[kTileRows][kArcFields], before[kTileRows], after[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const ArcRange& row = rows[r];
    const bool inside = lat >= row.first_lat && lat - row.first_lat < row.end - row.begin;
    const int32_t guess = inside ? row.begin + lat - row.first_lat : 0;
    const int32_t* arc = arcs + int64_t{guess} * kArcFields;
#pragma unroll
    for (int i = 0; i < kArcFields; ++i) fields[r][i] = inside ? arc[i] : -1;
    before[r] = inside && guess > row.begin ? arc[-kArcFields] : -1;
    after[r] = inside && guess + 1 < row.end ? arc[kArcFields] : -1;
  }
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    found[r] = {0, 0, false};
    if (lat < rows[r].first_lat || lat > rows[r].last_lat) continue;
    if (ordinal == 0 && fields[r][0] == lat && before[r] != lat)
      found[r] = {fields[r][1], fields[r][2], after[r] == lat};
    else
      found[r] = find_arc(arcs, rows[r], lat, ordinal);
  }
}

// Where the planning warp is: the latitudes from `lat` on, and their arcs number `ordinal`.
struct PlanCursor {
  int32_t lat = 0;
  int ordinal = 0;
};

__device__ inline ArcRange arc_range(const StripSource& source, int32_t row) {
  ArcRange range;
  if (row >= source.rows) return range;
  range.begin = source.table.arc_off[row];
  range.end = source.table.arc_off[row + 1];
  return range;
}

// Plans the strips of the next latitudes; by one warp.
template <typename Layout, typename Owners>
__device__ void plan_strips(StripPlan<Layout>& plan, const StripSource& source, const Owners& tile,
                            PlanCursor& cursor) {
  const int32_t nlon = source.partners.nlon;
  ArcRange rows[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) rows[r] = arc_range(source, tile.row + r);
#pragma unroll
  for (ArcRange& row : rows)
    if (row.begin < row.end) {
      row.first_lat = source.table.arcs[int64_t{row.begin} * kArcFields];
      row.last_lat = source.table.arcs[int64_t{row.end - 1} * kArcFields];
    }
  const int32_t last_lat = max(rows[0].last_lat, rows[1].last_lat);
  cursor.lat = max(cursor.lat, min(min(rows[0].first_lat, rows[1].first_lat), last_lat + 1));
  const int32_t lat = cursor.lat + lane_index();
  const bool planned = lat <= last_lat;
  const float quad_weight = planned && source.quad_weights ? source.quad_weights[lat] : 1.0f;
  FoundArc found[kTileRows] = {};
  if (planned) find_arcs(source.table.arcs, rows, lat, cursor.ordinal, found);
  int32_t low = INT32_MAX, high = INT32_MIN;
  bool more = false;
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    more = more || found[r].more;
    if (found[r].length == 0) continue;
    // arcs lie around their owners: let them not wrap there; a whole circle begins where it likes
    if (found[r].length == nlon) found[r].first = -(nlon / 2);
    if (found[r].first > nlon / 2) found[r].first -= nlon;
    low = min(low, found[r].first);
    high = max(high, found[r].first + found[r].length);
  }
  const bool some = low < high;
  const int32_t length = some ? high - low + (Owners::kColumns - 1) * source.table.stride : 0;
  typename StripPlan<Layout>::Arcs arcs;
  typename StripPlan<Layout>::Window window{INT32_MAX / 2, INT32_MIN / 2};
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const FoundArc& arc = found[r];
    arcs.first[r] = arc.length ? arc.first - low : 0;
    arcs.last[r] = arc.length ? arcs.first[r] + arc.length : INT32_MIN / 2;
    if (arc.length) window = {min(window.begin, arcs.first[r]), max(window.end, arcs.last[r])};
  }
  plan.arcs[lane_index()] = arcs;
  plan.windows[lane_index()] = window;
  int32_t end = length;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int32_t before = __shfl_up_sync(kFullMask, end, offset);
    if (lane_index() >= offset) end += before;
  }
  int32_t first_lon = some ? low + tile.column * source.table.stride : 0;
  if (first_lon < 0) first_lon += nlon;
  float weight = quad_weight * source.weight_scale;
  if (source.logarithms) weight = log2f(weight);
  plan.strips[lane_index()] = {lat * nlon, first_lon, end - length, weight};
  more = __any_sync(kFullMask, more);
  if (lane_index() == kWarp - 1) {
    plan.strips[kPlanStrips].begin = end;
    plan.last = !more && cursor.lat + kPlanStrips > last_lat;
  }
  cursor.ordinal = more ? cursor.ordinal + 1 : 0;
  if (!more) cursor.lat += kPlanStrips;
}

// Rows of the stream in shared memory: of two tensors, and two statistics of every row where kStatistics.
template <typename Layout, typename storage_t, int kChannels, bool kStatistics>
struct StageMemory {
  static constexpr int kRowBytes = tile_row_bytes<storage_t, kChannels>();
  // a group that begins at the last row reads 7 rows further
  static constexpr int kPadRows = kGroupColumns - 1;
  static constexpr int kTensorBytes = (Layout::kStageRows + kPadRows) * kRowBytes;
  static constexpr int kStatisticsBytes = kStatistics ? (Layout::kStageRows + kPadRows + 1) * 8 : 0;
  static constexpr int kStageBytes = 2 * kTensorBytes + kStatisticsBytes;
  static constexpr int kPlanBytes = (sizeof(StripPlan<Layout>) + 15) / 16 * 16;
  static constexpr int kBytes = kPlanBytes + Layout::kStages * kStageBytes;

  char* memory;

  __device__ StripPlan<Layout>& plan() const { return *reinterpret_cast<StripPlan<Layout>*>(memory); }
  __device__ char* stage(int index) const { return memory + kPlanBytes + index % Layout::kStages * kStageBytes; }

  // Rows that are never loaded are multiplied by zero: they must not be NaN.
  __device__ void clear_pads() const {
    constexpr int kWords = kPadRows * kRowBytes / 16;
    for (int i = threadIdx.x; i < 2 * Layout::kStages * kWords; i += Layout::kThreads) {
      const int pad = i / kWords;
      char* end = stage(pad / 2) + pad % 2 * kTensorBytes + Layout::kStageRows * kRowBytes;
      reinterpret_cast<int4*>(end)[i % kWords] = int4{};
    }
    if constexpr (kStatistics)
      for (int i = threadIdx.x; i < Layout::kStages * (kPadRows + 1); i += Layout::kThreads)
        reinterpret_cast<float2*>(stage(i / (kPadRows + 1)) +
                                  2 * kTensorBytes)[Layout::kStageRows + i % (kPadRows + 1)] = float2{};
  }
};

// Copies 16 or 8 bytes to shared memory, or clears them where the source does not exist.
__device__ inline void copy_async_16(uint32_t target, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(exists ? 16 : 0));
}
__device__ inline void copy_async_8(uint32_t target, const void* source, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(target), "l"(source), "r"(exists ? 8 : 0));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// A tensor of partners: its first point of the batch and head, bytes from one point to the next, channels.
template <typename storage_t>
struct PartnerTensor {
  const storage_t* first;
  uint32_t pitch_bytes;
  int32_t channels;
};

template <typename storage_t>
struct PartnerTensors {
  PartnerTensor<storage_t> tensors[2];
  const float2* statistics;  // of the batch and head, or null
  uint32_t statistics_pitch_bytes;
};

// Looks up the partners of the rows of one stage; `strip` is a cursor that only advances.
template <typename Layout>
__device__ void find_points(StripPlan<Layout>& plan, int32_t nlon, int stage, int& strip) {
  for (int i = threadIdx.x; i < Layout::kStageRows; i += Layout::kThreads) {
    static_assert(Layout::kStageRows <= Layout::kThreads, "a thread's rows would not ascend");
    const int32_t row = stage * Layout::kStageRows + i;
    uint32_t point = kNoPoint;
    if (row < plan.strips[kPlanStrips].begin) {
      while (row >= plan.strips[strip + 1].begin) ++strip;
      const auto from = plan.strips[strip];
      int32_t lon = from.first_lon + row - from.begin;
      while (lon >= nlon) lon -= nlon;
      point = from.first_point + lon;
    }
    plan.points[stage % Layout::kStages][i] = point;
  }
}

template <typename Layout, typename storage_t, int kChannels, bool kStatistics>
__device__ void copy_stage(const StageMemory<Layout, storage_t, kChannels, kStatistics>& memory,
                           const PartnerTensors<storage_t>& partners, int stage) {
  constexpr int kPacket = 16 / sizeof(storage_t);
  constexpr int kPackets = kChannels / kPacket;
  constexpr int kRowsAtOnce = Layout::kThreads / kPackets;
  static_assert(Layout::kStageRows % kRowsAtOnce == 0);
  const int packet = threadIdx.x % kPackets, first_row = threadIdx.x / kPackets;
  const uint32_t stage_begin = shared_address(memory.stage(stage));
  const uint32_t target = stage_begin + first_row * memory.kRowBytes + packet * 16;
  const uint32_t* points = memory.plan().points[stage % Layout::kStages];
  const char* sources[2];
  bool exists[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    exists[t] = packet * kPacket < partners.tensors[t].channels;
    sources[t] = reinterpret_cast<const char*>(partners.tensors[t].first) + (exists[t] ? packet * 16 : 0);
  }
#pragma unroll
  for (int i = 0; i < Layout::kStageRows; i += kRowsAtOnce) {
    const uint32_t point = points[first_row + i];
#pragma unroll
    for (int t = 0; t < 2; ++t)
      copy_async_16(target + t * memory.kTensorBytes + i * memory.kRowBytes,
                    sources[t] + uint64_t{point} * partners.tensors[t].pitch_bytes, point != kNoPoint && exists[t]);
  }
  if constexpr (kStatistics)
    for (int row = threadIdx.x; row < Layout::kStageRows; row += Layout::kThreads) {
      const uint32_t point = points[row];
      copy_async_8(
          stage_begin + 2 * memory.kTensorBytes + row * 8,
          reinterpret_cast<const char*>(partners.statistics) + uint64_t{point} * partners.statistics_pitch_bytes,
          point != kNoPoint);
    }
}

// Which columns of a step are partners of this lane's two owners: bit c of held[i], counted from the lane's first one.
struct ColumnMask {
  uint32_t held[2];

  __device__ bool holds(int column, int i) const { return held[i] & (1u << column); }
};

// Bits first .. last - 1 of 32; either may lie outside.
__device__ inline uint32_t bit_range(int32_t first, int32_t last) {
  // the shift of PTX, unlike that of C++, has a value for 32 and more: 0
  uint32_t from, beyond;
  asm("shl.b32 %0, %1, %2;" : "=r"(from) : "r"(0xffffffffu), "r"(max(first, 0)));
  asm("shl.b32 %0, %1, %2;" : "=r"(beyond) : "r"(0xffffffffu), "r"(max(last, 0)));
  return from & ~beyond;
}

// Calls step.template operator()<groups>(stage memory, first column, mask, weight) until every window of the stage, or
// the share of this warp, is covered, with kGroups groups of columns at a time or, at the end of a window, fewer.
// lane_column: the first of the columns that the lane has of a group.
template <int kGroups, typename Owners, typename Layout, typename storage_t, int kChannels, bool kStatistics,
          typename Step>
__device__ void visit_stage(const StageMemory<Layout, storage_t, kChannels, kStatistics>& memory, int stage,
                            int32_t stride, int lane_column, int& strip, const Step& step) {
  const StripPlan<Layout>& plan = memory.plan();
  const int32_t warp_shift = Owners::octet() * kOctet * stride;
  const int32_t begin = stage * Layout::kStageRows, end = begin + Layout::kStageRows;
  const int32_t lane_shift = warp_shift + lane_index() / 4 * stride - lane_column;
  char* rows = memory.stage(stage);
  while (strip < kPlanStrips && plan.strips[strip + 1].begin <= begin) ++strip;
  for (int s = strip; s < kPlanStrips; ++s) {
    const auto from = plan.strips[s];
    if (from.begin >= end) break;
    const int32_t origin = from.begin - begin;  // of the strip, in columns of the stage
    const auto window = plan.windows[s];
    int32_t column = max(window.begin + warp_shift + origin, 0);
    int32_t last = min(window.end + warp_shift + (kOctet - 1) * stride + origin, Layout::kStageRows);
    if constexpr (Owners::kShares > 1) {
      const int32_t groups = (last - column + kGroupColumns - 1) / kGroupColumns, begins = column;
      column = begins + groups * Owners::share() / Owners::kShares * kGroupColumns;
      last = min(last, begins + groups * (Owners::share() + 1) / Owners::kShares * kGroupColumns);
    }
    if (column >= last) continue;
    const auto arcs = plan.arcs[s];
    int32_t first_held[2], last_held[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first_held[i] = arcs.first[i] + origin + lane_shift;
      last_held[i] = min(arcs.last[i] + origin + lane_shift, Layout::kStageRows - lane_column);
    }
    const auto visit = [&]<int kCount>() {
      const ColumnMask mask{bit_range(first_held[0] - column, last_held[0] - column),
                            bit_range(first_held[1] - column, last_held[1] - column)};
      step.template operator()<kCount>(rows, column, mask, from.weight);
      column += kCount * kGroupColumns;
    };
    while (column + (kGroups - 1) * kGroupColumns < last) visit.template operator()<kGroups>();
    if constexpr (kGroups > 3)
      if (column + 2 * kGroupColumns < last) {
        visit.template operator()<3>();
        continue;
      }
    if constexpr (kGroups > 2)
      if (column + kGroupColumns < last) {
        visit.template operator()<2>();
        continue;
      }
    if (column < last) visit.template operator()<1>();
  }
}

// Streams all strips of the block's owners through shared memory. All threads take part.
template <int kGroups, typename Owners, typename Layout, typename storage_t, int kChannels, bool kStatistics,
          typename Step>
__device__ void stream_strips(const StageMemory<Layout, storage_t, kChannels, kStatistics>& memory,
                              const StripSource& source, const PartnerTensors<storage_t>& partners, const Owners& tile,
                              int lane_column, const Step& step) {
  constexpr int kAhead = Layout::kStages - 1;
  StripPlan<Layout>& plan = memory.plan();
  const bool plans = threadIdx.x < kWarp;
  PlanCursor cursor;
  memory.clear_pads();
  do {
    if (plans) plan_strips(plan, source, tile, cursor);
    __syncthreads();
    const int stages = (plan.strips[kPlanStrips].begin + Layout::kStageRows - 1) / Layout::kStageRows;
    int found = 0, visited = 0;  // cursors
#pragma unroll
    for (int stage = 0; stage < Layout::kStages; ++stage)
      if (stage < stages) find_points(plan, source.partners.nlon, stage, found);
    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      if (stage < stages) copy_stage(memory, partners, stage);
      if (stage < kAhead) commit_copies();  // the last one with what stage 0 copies, which is nothing
    }
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kAhead - 1>();
      __syncthreads();
      // the buffer of the stage before is free now
      if (stage > 0 && stage + kAhead < stages) copy_stage(memory, partners, stage + kAhead);
      commit_copies();
      if (stage + Layout::kStages < stages) find_points(plan, source.partners.nlon, stage + Layout::kStages, found);
      visit_stage<kGroups, Owners>(memory, stage, source.table.stride, lane_column, visited, step);
    }
    if (plan.last) break;
    __syncthreads();
  } while (true);
}

// What a share leaves in shared memory: its sums, and four more numbers.
template <int kChannels>
constexpr int kMergedBytes = (kChannels / 2 + 4) * kWarp * static_cast<int>(sizeof(float));

// Adds to the sums of the first share those of the others, in their order; all threads take part, after the stream,
// whose memory it takes. What all shares have of an owner lies in the same lane. merge(others) is given four more
// numbers of the other share and returns what its sums are multiplied by. Returns whether this warp has the result.
template <typename Owners, int kChannels, typename Merge>
__device__ bool merge_shares(char* memory, TileSums<kChannels>& sums, const float (&more)[4], const Merge& merge) {
  if constexpr (Owners::kShares == 1) return true;
  constexpr int kValues = kChannels / 2;
  float* values = reinterpret_cast<float*>(memory) + lane_index();
  __syncthreads();
  if (Owners::share() > 0) {
    float* own = values + (Owners::share() - 1) * (kValues + 4) * kWarp;
#pragma unroll
    for (int i = 0; i < kValues; ++i) own[i * kWarp] = sums.values[i / 4][i % 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) own[(kValues + i) * kWarp] = more[i];
  }
  __syncthreads();
  if (Owners::share() > 0) return false;
#pragma unroll 1
  for (int share = 1; share < Owners::kShares; ++share) {
    const float* other = values + (share - 1) * (kValues + 4) * kWarp;
    float others[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) others[i] = other[(kValues + i) * kWarp];
    const float2 factors = merge(others);
#pragma unroll
    for (int i = 0; i < kValues; ++i)
      sums.values[i / 4][i % 4] += other[i * kWarp] * (i % 4 < 2 ? factors.x : factors.y);
  }
  return true;
}

template <typename Owners, int kChannels>
__device__ bool merge_shares(char* memory, TileSums<kChannels>& sums) {
  return merge_shares<Owners>(memory, sums, {}, [](const float (&)[4]) { return float2{1.0f, 1.0f}; });
}

}  // namespace s2attn::cuda
