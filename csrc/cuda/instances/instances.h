// What instances/ provides: the kernels of one storage type per file, behind these two functions.
#pragma once

#include <cuda_runtime.h>

#include "../../problem.h"
#include "../policy.h"

namespace s2attn::cuda {

template <typename storage_t>
void launch_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream);
template <typename storage_t>
void launch_backward(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream);

}  // namespace s2attn::cuda
