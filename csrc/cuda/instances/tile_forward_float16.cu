// The tensor core kernels of the forward pass for float16 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_forward<__half>(const KernelPolicy&, const ForwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
