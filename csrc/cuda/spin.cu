// Launches the spin kernel, the clock that measurements read on the device.
#include <cuda_runtime.h>

#include "dispatch.cuh"
#include "kernels/spin.cuh"
#include "launch.h"

namespace s2attn::cuda {

void spin(int64_t* stamps, int64_t cycles, void* stream) {
  launch(spin_between_stamps, {stamps, cycles}, {.blocks = 1, .threads = 1, .shared_bytes = 0},
         static_cast<cudaStream_t>(stream));
}

}  // namespace s2attn::cuda
