// The kernels for float32 storage.
#include "../dispatch.cuh"

namespace s2attn::cuda {

template void launch_forward<float>(const KernelPolicy&, const ForwardParams&, cudaStream_t);
template void launch_backward<float>(const KernelPolicy&, const BackwardParams&, cudaStream_t);

}  // namespace s2attn::cuda
