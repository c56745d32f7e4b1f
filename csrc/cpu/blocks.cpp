#include "blocks.h"

#include "storage.h"
#include "transpose.h"

namespace s2attn::cpu {

void store_block(const Owners& owners, const OwnerBlock& block, const Lanes* values, const Target& target) {
  const int64_t features = int64_t{owners.heads} * target.channels;
  const int64_t longitude = block.residue + int64_t{owners.residues} * block.first;
  const int64_t point = (block.batch * owners.grid.nlat + block.lat) * owners.grid.nlon + longitude;
  const int64_t offset = point * features + int64_t{block.head} * target.channels;
  with_storage(target.storage, [&]<typename storage_t>(storage_t) {
    transpose(reinterpret_cast<const float*>(values), kLanes, static_cast<storage_t*>(target.data) + offset,
              features * owners.residues, target.channels, block.count);
  });
}

}  // namespace s2attn::cpu
