// The tensor core kernels of the forward pass for bfloat16 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_forward<__nv_bfloat16>(const KernelPolicy&, const ForwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
