// The portable kernels for float32 storage.
#include "../dispatch_gather.cuh"

namespace s2attn::cuda {

template void launch_gather_forward<float>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_gather_backward_query<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_gather_backward_key<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_backward_statistics<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
