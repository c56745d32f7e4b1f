// Which owner and head a warp has.
#pragma once

#include <cstdint>

#include "../../problem.h"
#include "warp.cuh"

namespace s2attn::cuda {

struct Owner {
  int64_t batch;
  int32_t lat;
  int32_t lon;
  int32_t head;
  int64_t point;  // (batch, lat, lon) flattened
};

// Blocks of one row (batch, latitude, head): each warp of a block has one longitude.
__host__ __device__ inline uint32_t blocks_per_row(Grid grid, uint32_t warps_per_block) {
  return (static_cast<uint32_t>(grid.nlon) + warps_per_block - 1) / warps_per_block;
}

// Neighboring warps have neighboring longitudes, whose partners overlap. Latitudes alternate between the poles, from
// there to the equator: the longest rows, near the poles, start first and do not trail behind at the end.
// Divides 32-bit numbers only: 64-bit division is a call, and made the register allocation spill around it.
// Returns false for a warp without an owner.
__device__ inline bool find_owner(const Shape& shape, Grid grid, Owner& owner) {
  const uint32_t warps = blockDim.x / kWarp;
  const uint32_t row_blocks = blocks_per_row(grid, warps);
  const uint32_t row = blockIdx.x / row_blocks;
  const uint32_t batch_and_rank = row / shape.heads;
  const uint32_t rank = batch_and_rank % grid.nlat;
  owner.lon = static_cast<int32_t>(blockIdx.x % row_blocks * warps + threadIdx.x / kWarp);
  owner.head = static_cast<int32_t>(row % shape.heads);
  owner.batch = batch_and_rank / grid.nlat;
  owner.lat = static_cast<int32_t>(rank % 2 ? grid.nlat - 1 - rank / 2 : rank / 2);
  owner.point = (owner.batch * grid.nlat + owner.lat) * grid.nlon + owner.lon;
  return owner.lon < grid.nlon;
}

}  // namespace s2attn::cuda
