// Which owners each block of a tile kernel has: plain C++, so that it is tested without a GPU. The host works out what
// would take every warp divisions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../problem.h"

#ifdef __CUDACC__
#define S2ATTN_HOST_DEVICE __host__ __device__
#else
#define S2ATTN_HOST_DEVICE
#endif

namespace s2attn::cuda {

constexpr int kTileRows = 2;  // of the gather table
constexpr int kOctet = 8;     // of its columns

// Divides a number below 2^31: a multiplication by the reciprocal, rounded up to 32 bits, is exact for so many
// (Granlund and Montgomery, Division by invariant integers using multiplication, 1994).
struct Divisor {
  uint32_t divisor;
  uint32_t reciprocal;  // times 2^-(31 + shift)
  uint32_t shift = 0;

  // 0 divides as 1: there is nothing to divide then.
  explicit Divisor(int64_t value) : divisor(static_cast<uint32_t>(std::max<int64_t>(value, 1))) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    reciprocal = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
  }

  S2ATTN_HOST_DEVICE uint32_t quotient(uint32_t value) const {
    return static_cast<uint32_t>((uint64_t{2 * value} * reciprocal) >> 32) >> shift;
  }
};

// The owners of a warp, or of the warps that share the work of an octet: columns column .. column + 7 of the table rows
// row and row + 1; or, where warps have the same, share `share` of `shares` of their partners.
struct TilePlace {
  uint32_t batch;
  uint32_t head;
  uint32_t row;
  uint32_t column;
  int share;
  int shares;
};

// The owners of a call in tiles of two rows of the gather table, whose rows alternate between the poles, from there to
// the equator: the longest windows start first. Blocks go over columns first, then heads, batch and these ranks. The
// warps of a block have neighboring octets; in the first ranks all of them the same, and a share of its partners each.
struct TileGrid {
  uint32_t rows, columns;  // of the gather table
  uint32_t nlon;           // of the owners
  uint32_t tile_rows;
  uint32_t shared_ranks;
  uint32_t sharing_blocks;  // those of the shared ranks, which come first
  int64_t blocks;
  Divisor residues, heads, batch;
  Divisor across, sharing_across;  // blocks of a tile row

  TileGrid(const Shape& shape, const GatherTable& table, Grid owners, int octets, int shared)
      : rows(owners.nlat * table.residues),
        columns(owners.nlon / table.residues),
        nlon(owners.nlon),
        tile_rows((rows + kTileRows - 1) / kTileRows),
        shared_ranks(std::min<uint32_t>(shared, tile_rows)),
        residues(table.residues),
        heads(shape.heads),
        batch(shape.batch),
        across((columns + kOctet * octets - 1) / (kOctet * octets)),
        sharing_across((columns + kOctet - 1) / kOctet) {
    const int64_t sharing = shape.batch * shape.heads * shared_ranks * sharing_across.divisor;
    sharing_blocks = static_cast<uint32_t>(sharing);  // no more than blocks, of which a launch takes below 2^31
    blocks = sharing + shape.batch * shape.heads * (tile_rows - shared_ranks) * across.divisor;
  }

  // Of part `part` of a block, of kOctets.
  template <int kOctets>
  S2ATTN_HOST_DEVICE TilePlace place(uint32_t block, int part) const {
    const bool sharing = block < sharing_blocks;
    uint32_t index = sharing ? block : block - sharing_blocks;
    const auto divide = [&index](const Divisor& divisor) {
      const uint32_t quotient = divisor.quotient(index), rest = index - quotient * divisor.divisor;
      index = quotient;
      return rest;
    };
    const uint32_t column = divide(sharing ? sharing_across : across);
    const uint32_t head = divide(heads), in_batch = divide(batch);
    const uint32_t rank = sharing ? index : shared_ranks + index;
    const uint32_t tile_row = rank % 2 ? tile_rows - 1 - rank / 2 : rank / 2;
    return {in_batch,
            head,
            tile_row * kTileRows,
            (sharing ? column : column * kOctets + part) * kOctet,
            sharing ? part : 0,
            sharing ? kOctets : 1};
  }
};

}  // namespace s2attn::cuda
