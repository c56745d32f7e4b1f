// From a policy to the kernel compiled for it, per storage type. instances/ compiles one storage type per file.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "instances/instances.h"
#include "kernels/launch_bounds.cuh"
#include "tunings.h"

namespace s2attn::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "asking for the current GPU");
  check(cudaDeviceGetAttribute(&value, attribute, device), "asking what the GPU has");
  return value;
}

constexpr size_t kDefaultSharedBytes = 48 * 1024;  // what a block may have without asking

struct LaunchConfig {
  int64_t blocks;
  uint32_t threads;
  size_t shared_bytes;
  bool dependent = false;  // on the kernel before it, for which it waits itself (device/dependent_launch.cuh)
};

template <typename Params, typename... More>
void launch(void (*kernel)(Params, More...), const Params& params, const LaunchConfig& given, cudaStream_t stream,
            More... more) {
  if (given.blocks == 0) return;
  if (given.blocks > INT32_MAX)
    throw std::invalid_argument("points times heads: got " + std::to_string(given.blocks) +
                                " blocks, expected below 2^31");
  if (given.shared_bytes > kDefaultSharedBytes)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(given.shared_bytes)),
          "asking for shared memory");
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<uint32_t>(given.blocks);
  config.blockDim = given.threads;
  config.dynamicSmemBytes = given.shared_bytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = given.dependent && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, params, more...), "launching a kernel of s2attn");
}

[[noreturn]] inline void throw_not_compiled(const KernelPolicy& policy) {
  std::string compiled;
  for (const GatherRow& known : kGatherTable)
    compiled.append(" ").append(to_string(KernelPolicy{Variant::gather, known.policy, {}, true}));
  for (const TileRow& known : kTileTable)
    compiled.append(" ").append(to_string(KernelPolicy{Variant::tile, {}, known.policy, true}));
  throw std::invalid_argument("policy: got " + to_string(policy) + ", expected one of" + compiled);
}

template <typename T>
struct Type {
  using type = T;
};

}  // namespace s2attn::cuda
