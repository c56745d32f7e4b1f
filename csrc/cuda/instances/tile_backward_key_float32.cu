// The tensor core kernels of the backward_key pass for float32 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_backward_key<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
