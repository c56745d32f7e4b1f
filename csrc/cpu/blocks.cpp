#include "blocks.h"

#include "storage.h"
#include "transpose.h"

namespace s2attn::cpu {

namespace {

// Of the first owner's first channel in an NHWC tensor.
int64_t block_offset(const Owners& owners, const OwnerBlock& block, int32_t channels) {
  const int64_t longitude = block.residue + int64_t{owners.residues} * block.first;
  const int64_t point = (block.batch * owners.grid.nlat + block.lat) * owners.grid.nlon + longitude;
  return (point * owners.heads + block.head) * channels;
}

int64_t owner_stride(const Owners& owners, int32_t channels) {
  return int64_t{owners.heads} * channels * owners.residues;
}

}  // namespace

void load_block(const Owners& owners, const OwnerBlock& block, const Source& source, Lanes* values) {
  if (block.count < kLanes)
    for (int32_t c = 0; c < source.channels; ++c) values[c] = Lanes{};
  const int64_t offset = block_offset(owners, block, source.channels);
  with_storage(source.storage, [&]<typename storage_t>(storage_t) {
    transpose(static_cast<const storage_t*>(source.data) + offset, owner_stride(owners, source.channels),
              reinterpret_cast<float*>(values), kLanes, block.count, source.channels);
  });
}

void store_block(const Owners& owners, const OwnerBlock& block, const Lanes* values, const Target& target) {
  const int64_t offset = block_offset(owners, block, target.channels);
  with_storage(target.storage, [&]<typename storage_t>(storage_t) {
    transpose(reinterpret_cast<const float*>(values), kLanes, static_cast<storage_t*>(target.data) + offset,
              owner_stride(owners, target.channels), target.channels, block.count);
  });
}

}  // namespace s2attn::cpu
