// The portable kernels for bfloat16 storage.
#include "../dispatch_gather.cuh"

namespace s2attn::cuda {

template void launch_gather_forward<__nv_bfloat16>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_gather_backward_query<__nv_bfloat16>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_gather_backward_key<__nv_bfloat16>(const KernelPolicy&, const BackwardParams&, cudaStream_t);
template void launch_backward_statistics<__nv_bfloat16>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
