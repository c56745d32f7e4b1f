// Entry points of the CPU kernels (arithmetic in float32). Results do not depend on the number of threads.
#pragma once

#include "../problem.h"

namespace s2attn::cpu {

void forward(const ForwardParams& params, Storage storage, int threads);
void forward_unpacked(const ForwardParams& params, Storage storage, int threads);
void backward(const BackwardParams& params, Storage storage, int threads);

}  // namespace s2attn::cpu
