#include "kept_memory.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "lanes.h"

namespace s2attn::cpu {
namespace {

// Smaller blocks come from pages that the allocator keeps anyway.
constexpr int64_t kSmallestKept = int64_t{1} << 20;

struct Block {
  float* memory = nullptr;
  int64_t bytes = 0;
};

// A backward packs six tensors. An array, because giving memory back must not need any.
std::mutex mutex;
std::array<Block, 16> blocks;

// Where a block of that size may be kept, if it may.
Block* free_place(int64_t bytes) {
  Block* place = nullptr;
  for (Block& block : blocks) {
    bytes += block.bytes;
    if (!block.memory) place = &block;
  }
  return bytes <= kKeptBytes ? place : nullptr;
}

}  // namespace

float* take_memory(int64_t bytes) {
  if (bytes >= kSmallestKept) {
    const std::lock_guard lock(mutex);
    for (Block& block : blocks)
      if (block.bytes == bytes) return std::exchange(block, {}).memory;
  }
  auto* memory = static_cast<float*>(std::aligned_alloc(kLaneBytes, bytes));
  if (!memory) throw std::bad_alloc();
  return memory;
}

void give_memory_back(float* memory, int64_t bytes) {
  if (bytes >= kSmallestKept && bytes <= kKeptBytes) {
    const std::lock_guard lock(mutex);
    // what another problem left makes room
    for (Block& block : blocks)
      if (block.bytes != bytes && !free_place(bytes)) std::free(std::exchange(block, {}).memory);
    if (Block* place = free_place(bytes)) {
      *place = {memory, bytes};
      return;
    }
  }
  std::free(memory);
}

}  // namespace s2attn::cpu
