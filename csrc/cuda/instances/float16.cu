// The kernels for float16 storage.
#include "../dispatch.cuh"

namespace s2attn::cuda {

template void launch_forward<__half>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_backward<__half>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
