// A kernel that starts before the one before it on the stream has ended, where that leaves multiprocessors idle
// (programmatic dependent launch, sm_90 and later; before, these do nothing and kernels follow each other).
#pragma once

namespace s2attn::cuda {

// Called in every block of the first kernel: from when all have, or have ended, blocks of the next one may start.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Called in the next kernel before it reads what the first one wrote, or writes anything: that one has ended then, and
// its writes are seen. Not by __ldg, which takes memory for constant while a kernel runs.
__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace s2attn::cuda
