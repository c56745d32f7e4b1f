// The tensor core kernels of the forward pass for float32 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_forward<float>(const KernelPolicy&, const ForwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
