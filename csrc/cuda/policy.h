// How a warp is laid over channels and partners: a value, chosen on the host by select_policy().
// Plain C++, so that the choice is tested without a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace s2attn::cuda {

// A warp (one owner and head) splits into 32 / group groups of lanes; each group takes every 32 / group-th partner.
// A lane keeps chunks times vector channels of the owner in registers, loaded vector at a time.
// chunks = 0: the owner's channels lie in shared memory instead, any number of them.
struct KernelPolicy {
  int vector;
  int group;
  int chunks;

  constexpr bool operator==(const KernelPolicy&) const = default;
  constexpr int capacity() const { return vector * group * chunks; }
  constexpr bool in_shared_memory() const { return chunks == 0; }
};

inline constexpr KernelPolicy kSharedMemoryPolicy{1, 32, 0};

// Every policy that is compiled, narrowest first: the first that fits leaves the fewest lanes without a channel.
inline constexpr KernelPolicy kPolicies[] = {
    {4, 4, 1}, {4, 8, 1}, {4, 16, 1}, {4, 32, 1}, {1, 8, 1}, {1, 32, 2}, kSharedMemoryPolicy,
};

struct ProblemFacts {
  int32_t channels;      // of q and k, per head
  int32_t channels_out;  // of v and y, per head
  bool aligned;          // all tensors begin at a multiple of four elements
};

constexpr KernelPolicy select_policy(const ProblemFacts& facts) {
  const int widest = facts.channels > facts.channels_out ? facts.channels : facts.channels_out;
  const bool whole_vectors = facts.aligned && facts.channels % 4 == 0 && facts.channels_out % 4 == 0;
  for (const KernelPolicy& policy : kPolicies) {
    if (policy.vector > 1 && !whole_vectors) continue;
    if (policy.in_shared_memory() || widest <= policy.capacity()) return policy;
  }
  return kSharedMemoryPolicy;
}

inline std::string to_string(const KernelPolicy& policy) {
  return std::string("{vector ") + std::to_string(policy.vector) + ", group " + std::to_string(policy.group) +
         ", chunks " + std::to_string(policy.chunks) + "}";
}

}  // namespace s2attn::cuda
