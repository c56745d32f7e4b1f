// Cuts the owners of a problem into blocks, spreads the blocks over threads, and stores a block's result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include <omp.h>

#include "../problem.h"
#include "lanes.h"
#include "packed_grid.h"
#include "partners.h"
#include "strips.h"

namespace s2attn::cpu {

struct Owners {
  int64_t batch;
  Grid grid;
  int32_t residues;
  int32_t heads;
};

// Vectors for one thread each, allocated before the threads start: nothing may throw inside a parallel region.
class Scratch {
 public:
  Scratch(int threads, int64_t vectors) : vectors_(vectors) {
    data_.reset(static_cast<Lanes*>(std::aligned_alloc(kLaneBytes, (threads * vectors + 1) * sizeof(Lanes))));
    if (!data_) throw std::bad_alloc();
  }
  Lanes* of_this_thread() const { return data_.get() + omp_get_thread_num() * vectors_; }

 private:
  struct Free {
    void operator()(Lanes* pointer) const { std::free(pointer); }
  };
  int64_t vectors_;
  std::unique_ptr<Lanes[], Free> data_;
};

// Calls body(block) for every block of owners. Which thread gets a block is left to chance (rows near a pole are many
// times longer than others); a block's result does not depend on it. Threads take runs of blocks, as neighbors find
// their partners in the same cache: with runs of 2 instead of 24 a forward on 180x360 with 11 keys per query took 6.0 ms
// instead of 4.6, with 92 5.2 (EPYC Zen 4, 2 threads, 2026-11-30).
template <typename Body>
void for_each_block(const Owners& owners, int threads, const Body& body) {
  const int32_t elements = owners.grid.nlon / owners.residues;
  const int64_t blocks = (elements + kLanes - 1) / kLanes;
  const int64_t rows = int64_t{owners.grid.nlat} * owners.residues;
  const int64_t total = owners.batch * rows * owners.heads * blocks;
  const int64_t run = std::clamp<int64_t>(total / (int64_t{16} * threads), 1, 24);
#pragma omp parallel for num_threads(threads) schedule(dynamic, run)
  for (int64_t index = 0; index < total; ++index) {
    OwnerBlock block;
    const int64_t row_and_block = index / owners.heads;
    const int64_t batch_and_row = row_and_block / blocks;
    block.first = static_cast<int32_t>(row_and_block % blocks) * kLanes;
    block.count = elements - block.first < kLanes ? elements - block.first : kLanes;
    block.head = static_cast<int32_t>(index % owners.heads);
    block.batch = batch_and_row / rows;
    block.lat = static_cast<int32_t>(batch_and_row % rows / owners.residues);
    block.residue = static_cast<int32_t>(batch_and_row % rows % owners.residues);
    body(block);
  }
}

// The channels of a block's owners in a packed tensor of theirs.
inline OwnerChannels owner_channels(const Owners& owners, const OwnerBlock& block, const PackedGrid& grid,
                                    int32_t channels) {
  const int64_t line = (block.batch * owners.grid.nlat + block.lat) * owners.residues + block.residue;
  return {grid.line(line, int64_t{block.head} * channels) + block.first, grid.line_stride()};
}

// NHWC tensors on the owners' grid, to read or to write, with a number of channels per head.
struct Source {
  const void* data;
  Storage storage;
  int32_t channels;
};

struct Target {
  void* data;
  Storage storage;
  int32_t channels;
};

// Reads the channels of the block's head: values[c], lane i = owner i, zeros beyond the last owner.
void load_block(const Owners& owners, const OwnerBlock& block, const Source& source, Lanes* values);

// Writes values[c] (lane i = owner i) to the channels of the block's head, converted to what the target is stored as.
void store_block(const Owners& owners, const OwnerBlock& block, const Lanes* values, const Target& target);

}  // namespace s2attn::cpu
