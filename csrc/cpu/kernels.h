// Entry points of the CPU kernels (float32 storage and arithmetic). Results do not depend on the number of threads.
#pragma once

#include "../problem.h"

namespace s2attn::cpu {

void forward(ForwardParams params, int threads);
void backward(BackwardParams params, int threads);

}  // namespace s2attn::cpu
