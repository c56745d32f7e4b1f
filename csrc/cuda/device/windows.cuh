// The partners of a warp's owners, latitude by latitude, as windows of consecutive longitudes.
//
// Owners that follow each other along a row of the gather table have the same arcs, shifted by the table's stride, and
// the next row has nearly the same. A warp has 16 owners, 8 columns of two table rows (drawn in csrc/README.md), and
// multiplies, for every partner latitude, the union of their arcs: a window, in groups of 8 columns. What of it lies
// outside an owner's arc is masked. Partners are read straight into the fragments of the tensor cores; warps of a block
// are neighbors, so that most of what one reads the others find in the L1 cache.
// Near the poles, where a row of owners has many times the partners of others, the warps of a block may have the same
// owners, and a share of the partners each.
#pragma once

#include <cstdint>

#include "../../problem.h"
#include "tensor_cores.cuh"
#include "warp.cuh"

namespace s2attn::cuda {

constexpr int kTileRows = 2;  // of the gather table
constexpr int kOctet = 8;

// A block's owners: columns column .. column + kColumns - 1 of the table rows row and row + 1. Its warps have an octet
// of columns each; or, where kSharing, all of them the same octet and a share of its partners. kRoles warps that follow
// each other have the same octet and the same share, and share the work (backward_pair.cuh).
template <int kOctets, bool kSharing, int kRoles_ = 1>
struct TileOwners {
  static constexpr int kColumns = kSharing ? kOctet : kOctet * kOctets;
  static constexpr int kShares = kSharing ? kOctets : 1;
  static constexpr int kRoles = kRoles_;

  int64_t batch;
  int32_t head;
  int32_t row;
  int32_t column;

  static __device__ int octet() { return kSharing ? 0 : threadIdx.x / (kWarp * kRoles); }
  static __device__ int share() { return kSharing ? threadIdx.x / (kWarp * kRoles) : 0; }
  // Shuffled, so that ptxas takes branches on it for those of whole warps.
  static __device__ int role() {
    return kRoles == 1 ? 0 : __shfl_sync(kFullMask, static_cast<int>(threadIdx.x / kWarp) % kRoles, 0);
  }
};

__host__ __device__ inline int32_t table_rows(const GatherTable& table, Grid owners) {
  return owners.nlat * table.residues;
}
__host__ __device__ inline int32_t table_columns(const GatherTable& table, Grid owners) {
  return table.residues == 1 ? owners.nlon : owners.nlon / table.residues;  // divisions take long
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

// Rows alternate between the poles, from there to the equator: the longest windows start first.
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

// Calls visit(tile) with this block's owners. shared_ranks: of tile rows, whose blocks come first.
template <int kOctets, int kRoles = 1, typename Visit>
__device__ void with_owners(const Shape& shape, const GatherTable& table, Grid owners, uint32_t shared_ranks,
                            const Visit& visit) {
  const uint32_t sharing = sharing_blocks(shape, table, owners, shared_ranks);
  if constexpr (kOctets > 1)
    if (blockIdx.x < sharing)
      return visit_apart(find_tile<TileOwners<kOctets, true, kRoles>>(shape, table, owners, blockIdx.x, 0), visit);
  visit(find_tile<TileOwners<kOctets, false, kRoles>>(shape, table, owners, blockIdx.x - sharing, shared_ranks));
}

// Owner i (0 or 1) of this lane: row lane / 4 + 8 * i of its warp's tile. Returns its point, (batch, lat, lon)
// flattened, or -1 where there is none.
template <typename Owners>
__device__ int64_t lane_owner(const Owners& tile, const GatherTable& table, Grid owners, int i) {
  const int32_t row = tile.row + i, column = tile.column + tile.octet() * kOctet + lane_index() / 4;
  if (row >= table_rows(table, owners) || column >= table_columns(table, owners)) return -1;
  if (table.residues == 1) return (tile.batch * owners.nlat + row) * owners.nlon + column;
  const int32_t lon = column * table.residues + row % table.residues;
  return (tile.batch * owners.nlat + row / table.residues) * owners.nlon + lon;
}

struct PartnerSource {
  const GatherTable& table;
  Grid partners;
  int32_t rows;               // of the table
  const float* quad_weights;  // of the partners' latitudes; null: no weights
  float weight_scale;         // what they are multiplied by
  bool logarithms;            // whether steps get the logarithms to base 2 of that
};

// Of one partner latitude. Columns are counted from first_lon on.
struct Window {
  uint32_t first_point;  // of its latitude
  uint32_t first_lon;
  int32_t columns;
  int32_t first[kTileRows];  // arcs of the table rows, for their owners in the warp's first column
  int32_t last[kTileRows];   // one beyond; not above first: no partners there
  float weight;              // of the latitude, as PartnerSource has it

  __device__ Window of_lane(int lane) const {
    const auto from = [lane](auto value) { return __shfl_sync(kFullMask, value, lane); };
    return {from(first_point),
            from(first_lon),
            from(columns),
            {from(first[0]), from(first[1])},
            {from(last[0]), from(last[1])},
            from(weight)};
  }
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

// The latitudes from `lat` on, and their arcs number `ordinal`: what is planned next.
struct PlanCursor {
  int32_t lat = 0;
  int ordinal = 0;
  bool last = false;  // nothing is
};

__device__ inline ArcRange arc_range(const PartnerSource& source, int32_t row) {
  ArcRange range;
  if (row >= source.rows) return range;
  range.begin = source.table.arc_off[row];
  range.end = source.table.arc_off[row + 1];
  return range;
}

// The windows of the next 32 latitudes, a lane for each. column: the warp's first of the table.
__device__ inline Window plan_windows(const PartnerSource& source, int32_t row, int32_t column, PlanCursor& cursor) {
  const int32_t nlon = source.partners.nlon;
  ArcRange rows[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) rows[r] = arc_range(source, row + r);
#pragma unroll
  for (ArcRange& range : rows)
    if (range.begin < range.end) {
      range.first_lat = source.table.arcs[int64_t{range.begin} * kArcFields];
      range.last_lat = source.table.arcs[int64_t{range.end - 1} * kArcFields];
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
  Window window{static_cast<uint32_t>(lat * nlon), 0, 0, {0, 0}, {INT32_MIN / 2, INT32_MIN / 2},
                quad_weight * source.weight_scale};
  if (low < high) {
    const int32_t lon = low + column * source.table.stride;
    window.first_lon = lon < 0 ? lon + nlon : lon;
    window.columns = high - low + (kOctet - 1) * source.table.stride;
  }
#pragma unroll
  for (int r = 0; r < kTileRows; ++r)
    if (found[r].length) {
      window.first[r] = found[r].first - low;
      window.last[r] = window.first[r] + found[r].length;
    }
  if (source.logarithms) window.weight = log2f(window.weight);
  more = __any_sync(kFullMask, more);
  cursor.last = !more && cursor.lat + kWarp > last_lat;
  cursor.ordinal = more ? cursor.ordinal + 1 : 0;
  if (!more) cursor.lat += kWarp;
  return window;
}

// A tensor of partners: its first point of the batch and head, bytes from one point to the next, channels.
template <typename storage_t>
struct PartnerTensor {
  const storage_t* first;
  uint32_t pitch_bytes;
  int32_t channels;

  __device__ const storage_t* row(uint32_t point) const {
    return reinterpret_cast<const storage_t*>(reinterpret_cast<const char*>(first) + uint64_t{point} * pitch_bytes);
  }
};

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

// The partners of one step: columns of a window. Those beyond its last one are the last one again, and masked.
struct Step {
  uint32_t first_point;
  uint32_t first_lon;
  uint32_t last_lon;  // of the window; may be beyond the seam, as first_lon + 8 * groups
  uint32_t nlon;
  ColumnMask mask;
  float weight;

  __device__ uint32_t point(uint32_t column) const {
    const uint32_t lon = min(first_lon + column, last_lon);
    return first_point + min(lon, lon - nlon);  // the latter is huge where lon < nlon
  }
};

// Calls visit.template operator()<groups>(step) until every window of the warp's owners, or its share of them, is
// covered, with kGroups groups of columns at a time or, at the end of a window, fewer.
// lane_column: the first of the columns that the lane has of a group.
template <int kGroups, typename Owners, typename Visit>
__device__ void visit_partners(const PartnerSource& source, const Owners& tile, int lane_column, const Visit& visit) {
  const int32_t stride = source.table.stride, nlon = source.partners.nlon;
  const int32_t lane_shift = lane_index() / 4 * stride - lane_column;
  const int32_t widest = nlon < kGroups * kGroupColumns ? 1 : kGroups;
  PlanCursor cursor;
  do {
    const Window planned = plan_windows(source, tile.row, tile.column + tile.octet() * kOctet, cursor);
    for (unsigned left = __ballot_sync(kFullMask, planned.columns > 0); left; left &= left - 1) {
      const Window window = planned.of_lane(__ffs(left) - 1);
      int32_t column = 0, end = window.columns;
      if constexpr (Owners::kShares > 1) {
        // as many steps for every share, so that all of them meet as often: what is beyond the window is masked
        const int32_t groups = (end + kGroupColumns - 1) / kGroupColumns;
        const int32_t columns = (groups + Owners::kShares - 1) / Owners::kShares * kGroupColumns;
        column = Owners::share() * columns;
        end = column + columns;
      }
      int32_t lon = window.first_lon + column;
      const auto step = [&]<int kCount>() {
        while (lon >= nlon) lon -= nlon;
        int32_t first[2], beyond[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          first[i] = window.first[i] + lane_shift - column;
          beyond[i] = window.last[i] + lane_shift - column;
        }
        visit.template operator()<kCount>(Step{window.first_point,
                                               static_cast<uint32_t>(lon),
                                               static_cast<uint32_t>(lon + max(window.columns - 1 - column, 0)),
                                               static_cast<uint32_t>(nlon),
                                               {{bit_range(first[0], beyond[0]), bit_range(first[1], beyond[1])}},
                                               window.weight});
        column += kCount * kGroupColumns;
        lon += kCount * kGroupColumns;
      };
      if (widest == kGroups)
        while (column + (kGroups - 1) * kGroupColumns < end) step.template operator()<kGroups>();
      if constexpr (kGroups > 3)
        if (widest == kGroups && column + 2 * kGroupColumns < end) {
          step.template operator()<3>();
          continue;
        }
      if constexpr (kGroups > 2)
        if (widest == kGroups && column + kGroupColumns < end) {
          step.template operator()<2>();
          continue;
        }
      while (column < end) step.template operator()<1>();
    }
  } while (!cursor.last);
}

// What a warp leaves in shared memory for the first share: its sums, and four more numbers.
template <int kChannels>
constexpr int kMergedBytes = (kChannels / 2 + 4) * kWarp * static_cast<int>(sizeof(float));

// Adds to the sums of the first share those of the others, in their order and role by role; all threads take part. What
// all shares have of an owner lies in the same lane. merge(others) is given four more numbers of the other share and
// returns what its sums are multiplied by. Returns whether this warp has the result.
template <typename Owners, int kChannels, typename Merge>
__device__ bool merge_shares(char* memory, TileSums<kChannels>& sums, const float (&more)[4], const Merge& merge) {
  if constexpr (Owners::kShares == 1) return true;
  constexpr int kValues = kChannels / 2;
  constexpr int kOther = Owners::kRoles * (kValues + 4) * kWarp;  // from one share to the next
  float* values = reinterpret_cast<float*>(memory) + Owners::role() * (kValues + 4) * kWarp + lane_index();
  __syncthreads();
  if (Owners::share() > 0) {
    float* own = values + (Owners::share() - 1) * kOther;
#pragma unroll
    for (int i = 0; i < kValues; ++i) own[i * kWarp] = sums.values[i / 4][i % 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) own[(kValues + i) * kWarp] = more[i];
  }
  __syncthreads();
  if (Owners::share() > 0) return false;
#pragma unroll 1
  for (int share = 1; share < Owners::kShares; ++share) {
    const float* other = values + (share - 1) * kOther;
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
