// Chooses the policy of a call and hands it to the instance of its storage type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "dispatch.cuh"
#include "instances/instances.h"
#include "launch.h"
#include "select.h"

namespace s2attn::cuda {

namespace {

int alignment_of(std::initializer_list<const void*> tensors) {
  uintptr_t alignment = 16;
  for (const void* tensor : tensors)
    while (reinterpret_cast<uintptr_t>(tensor) % alignment != 0) alignment /= 2;
  return static_cast<int>(alignment);
}

ProblemFacts facts_of(const Shape& shape, const Call& call, Pass pass, std::initializer_list<const void*> tensors) {
  const auto points = [](Grid grid) { return int64_t{grid.nlat} * grid.nlon; };
  const bool by_key = pass == Pass::backward_key;
  const Grid owners = by_key ? shape.key : shape.query, partners = by_key ? shape.query : shape.key;
  return {.channels = shape.channels,
          .channels_out = shape.channels_out,
          .storage = call.storage,
          .alignment_bytes = alignment_of(tensors),
          .points = std::max(points(shape.query), points(shape.key)),
          .features = int64_t{shape.heads} * std::max(shape.channels, shape.channels_out),
          .width = neighborhood_width(by_key ? call.key_arcs : call.query_arcs, owners, partners),
          .architecture = 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) +
                          device_attribute(cudaDevAttrComputeCapabilityMinor),
          .shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .octets = shape.batch * shape.heads * owner_octets(owners, partners),
          .partner_longitudes = partners.nlon,
          .finer_partners = partners.nlon > owners.nlon};
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

KernelPolicy choose(const Shape& shape, const Call& call, Pass pass, std::initializer_list<const void*> tensors) {
  const Requests requests{environment("S2ATTN_CUDA_VARIANT"), environment("S2ATTN_CUDA_TILE")};
  return select_policy(facts_of(shape, call, pass, tensors), pass, requests);
}

// About log2 of the total weight of a neighborhood: so many points of the mean weight. Any number is right.
float weight_exponent(const Shape& shape, const Call& call) {
  const double rows = std::max(neighborhood_width(call.query_arcs, shape.query, shape.key), 1);
  const double points = rows * rows * shape.key.nlon / (2.0 * shape.key.nlat);
  return static_cast<float>(std::round(std::log2(points * 4.0 * M_PI / (double(shape.key.nlat) * shape.key.nlon))));
}

template <typename Visit>
void with_storage(Storage storage, const Visit& visit) {
  switch (storage) {
    case Storage::float32:
      return visit(float{});
    case Storage::float16:
      return visit(__half{});
    case Storage::bfloat16:
      return visit(__nv_bfloat16{});
  }
  throw std::invalid_argument("storage: expected float32, float16 or bfloat16");
}

}  // namespace

void forward(const ForwardParams& given, const Call& call, void* stream) {
  ForwardParams params = given;
  params.weight_exponent = weight_exponent(params.shape, call);
  const KernelPolicy policy = choose(params.shape, call, Pass::forward, {params.q, params.k, params.v, params.y});
  with_storage(call.storage, [&](auto element) {
    using storage_t = decltype(element);
    const auto launch =
        policy.variant == Variant::tile ? launch_tile_forward<storage_t> : launch_gather_forward<storage_t>;
    launch(policy, params, static_cast<cudaStream_t>(stream));
  });
}

void backward(const BackwardParams& given, const Call& call, void* stream) {
  BackwardParams params = given;
  params.weight_exponent = weight_exponent(params.shape, call);
  const auto tensors = {params.dy,
                        params.q,
                        params.k,
                        params.v,
                        params.y,
                        static_cast<const void*>(params.dq),
                        static_cast<const void*>(params.dk),
                        static_cast<const void*>(params.dv)};
  const KernelPolicy query = choose(params.shape, call, Pass::backward_query, tensors);
  const KernelPolicy key = choose(params.shape, call, Pass::backward_key, tensors);
  with_storage(call.storage, [&](auto element) {
    using storage_t = decltype(element);
    const auto launch_query = query.variant == Variant::tile ? launch_tile_backward_query<storage_t>
                                                             : launch_gather_backward_query<storage_t>;
    const auto launch_key =
        key.variant == Variant::tile ? launch_tile_backward_key<storage_t> : launch_gather_backward_key<storage_t>;
    const auto on = static_cast<cudaStream_t>(stream);
    // of float32 the query owners also correct the statistics that the key owners read
    const bool corrected = call.storage == Storage::float32 && (params.dk || params.dv);
    const bool by_query = params.dq || corrected;
    // tiles of query owners make them themselves
    if (!by_query || query.variant != Variant::tile) launch_backward_statistics<storage_t>(query, params, on);
    if (by_query) launch_query(query, params, on);
    if (params.dk || params.dv) launch_key(key, params, on);
  });
}

std::string describe_forward(const Shape& shape, const Call& call) {
  return to_string(choose(shape, call, Pass::forward, {}));
}

std::string describe_backward(const Shape& shape, const Call& call) {
  return to_string(choose(shape, call, Pass::backward_query, {})) + " + " +
         to_string(choose(shape, call, Pass::backward_key, {}));
}

std::vector<std::string> list_candidates(const Shape& shape, const Call& call, std::string_view pass) {
  for (const Pass known : kPasses)
    if (pass == to_string(known)) return candidates(facts_of(shape, call, known, {}), known);
  throw std::invalid_argument("pass: got " + std::string(pass) + ", expected forward, backward_query or backward_key");
}

}  // namespace s2attn::cuda
