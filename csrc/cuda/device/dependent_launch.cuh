// Programmatic dependent launch (sm_90 and later): a kernel starts before the one before it on the stream, its primary,
// has ended, where that leaves multiprocessors idle. On other architectures these do nothing, and kernels follow each
// other.
#pragma once

#include <cuda_runtime.h>

namespace s2attn::cuda {

// Called in every block of the primary: from when all have, or have ended, blocks of its dependent may start.
__device__ inline void trigger_dependent_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Called in the dependent before it reads what the primary wrote, or writes anything: the primary has ended then, and
// its writes are seen. Not by __ldg, which takes memory for constant while a kernel runs.
__device__ inline void wait_for_primary() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

}  // namespace s2attn::cuda
