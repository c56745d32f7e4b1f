// The tensor core kernels for float32 storage.
#include "../dispatch_tile.cuh"

namespace s2attn::cuda {

template void launch_tile_forward<float>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_tile_backward_query<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_tile_backward_key<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
