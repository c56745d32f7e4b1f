// Entry points of the CUDA kernels, for callers that know neither CUDA nor which kernel fits.
#pragma once

#include <string>

#include "../problem.h"

namespace s2attn::cuda {

// stream: a cudaStream_t of the current device. Errors of a launch are thrown as std::runtime_error.
void forward(const ForwardParams& params, Storage storage, void* stream);
void backward(const BackwardParams& params, Storage storage, void* stream);

// The policies that serve tensors of a shape that begin at a multiple of 16 bytes, in words.
std::string describe_forward(const Shape& shape, Storage storage);
std::string describe_backward(const Shape& shape, Storage storage);

}  // namespace s2attn::cuda
