// What instances/ provides: the kernels of one family, pass (tile) and storage type per file, behind these
// functions.
#pragma once

#include <cuda_runtime.h>

#include "../../problem.h"
#include "../policy.h"

namespace s2attn::cuda {

// gather and two_pass
template <typename storage_t>
void launch_gather_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream);
template <typename storage_t>
void launch_gather_backward_query(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream);
template <typename storage_t>
void launch_gather_backward_key(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream);
// tile
template <typename storage_t>
void launch_tile_forward(const KernelPolicy& policy, const ForwardParams& params, cudaStream_t stream);
template <typename storage_t>
void launch_tile_backward_query(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream);
template <typename storage_t>
void launch_tile_backward_key(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream);
// What the backward kernels of every variant read; compiled with gather.
template <typename storage_t>
void launch_backward_statistics(const KernelPolicy& policy, const BackwardParams& params, cudaStream_t stream);

}  // namespace s2attn::cuda
