// The tensor core kernels of the backward_query pass for float16 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_backward_query<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
