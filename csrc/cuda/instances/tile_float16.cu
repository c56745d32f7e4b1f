// The tensor core kernels for float16 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_forward<__half>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_tile_backward_query<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_tile_backward_key<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
