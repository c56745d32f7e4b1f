// The tensor core kernels of the backward_query pass for bfloat16 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_backward_query<__nv_bfloat16>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
