// Entry points of the CUDA kernels, for callers that know neither CUDA nor which kernel fits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../problem.h"

namespace s2attn::cuda {

// What a choice depends on beside the shape.
struct Call {
  Storage storage;
  int64_t query_arcs;  // of the whole table
  int64_t key_arcs;
};

// stream: a cudaStream_t of the current device. Errors of a launch are thrown as std::runtime_error.
void forward(const ForwardParams& params, const Call& call, void* stream);
void backward(const BackwardParams& params, const Call& call, void* stream);

// The policies that serve tensors of a shape that begin at a multiple of 16 bytes, in words.
std::string describe_forward(const Shape& shape, const Call& call);
std::string describe_backward(const Shape& shape, const Call& call);

// What may be measured in place of the policy of a pass, see candidates() in select.h. pass: by its name.
std::vector<std::string> list_candidates(const Shape& shape, const Call& call, std::string_view pass);

// Occupies the current device for that many cycles and writes int64[4] stamps, see kernels/spin.cuh.
void spin(int64_t* stamps, int64_t cycles, void* stream);

}  // namespace s2attn::cuda
