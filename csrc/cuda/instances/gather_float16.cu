// The portable kernels for float16 storage.
#include "../dispatch_gather.cuh"

namespace s2attn::cuda {

template void launch_gather_forward<__half>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_gather_backward_query<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_gather_backward_key<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_backward_statistics<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
