// Products of a tile of 16 owners with partners that lie in shared memory, on the tensor cores (sm_80 and later).
//
// A warp holds its owners' channels as OwnerTile and their sums as SumTile. Partners come 8 at a time, a "column
// group":
//   scores(owners, rows, S)       S[i][.] = owners . partners of group i
//   accumulate(sums, P, rows)     sums += P[i][.] partners of group i
// Element e of a group's four scores belongs to owner row lane / 4 + 8 * (e / 2) and to partner
// kColumnStep * (e % 2) + first_column().
// float16, bfloat16: m16n8k16 with ldmatrix. float32: every factor is split into two TF32 numbers, three products of
// which (m16n8k8) carry 21 bits; channels and partners are renumbered so that all loads of shared memory are of 16
// bytes and free of bank conflicts (derived here).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "warp.cuh"

namespace s2attn::cuda {

// Older architectures get kernels without a body; policy.h never chooses them there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define S2ATTN_TILES 1
#else
#define S2ATTN_TILES 0
#endif

constexpr int kGroupColumns = 8;

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline uint32_t bits(float value) {
  return __float_as_uint(value);
}

// 16-bit numbers in the two halves of a register.
template <typename storage_t>
struct Half2;

template <>
struct Half2<__half> {
  static __device__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <>
struct Half2<__nv_bfloat16> {
  static __device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

#define S2ATTN_MMA_16(storage_t, name)                                                                            \
  __device__ inline void mma(storage_t, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {      \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                                    \
        ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                                                            \
        "{%0,%1,%2,%3};"                                                                                          \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                  \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                          \
  }                                                                                                               \
  __device__ inline void mma(storage_t, float (&sum)[4], const uint32_t (&a)[2], uint32_t b) {                    \
    asm("mma.sync.aligned.m16n8k8.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                  \
        : "r"(a[0]), "r"(a[1]), "r"(b));                                                                          \
  }

S2ATTN_MMA_16(__half, "f16")
S2ATTN_MMA_16(__nv_bfloat16, "bf16")
#undef S2ATTN_MMA_16

__device__ inline void mma_tf32(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows of partners in shared memory are padded, so that the 8 rows of a column group begin in different banks.
template <typename storage_t, int kChannels>
constexpr int tile_row_bytes() {
  return kChannels * static_cast<int>(sizeof(storage_t)) + 16;
}

// Sums of a warp's 16 owners: the accumulators of a product with each group of 8 channels.
template <int kChannels>
struct TileSums {
  float values[kChannels / 8][4] = {};

  __device__ void scale(float first, float second) {
#pragma unroll
    for (auto& group : values) {
      group[0] *= first;
      group[1] *= first;
      group[2] *= second;
      group[3] *= second;
    }
  }
};

template <typename storage_t, int kChannels>
class TensorCores {
 public:
  static constexpr int kRowBytes = tile_row_bytes<storage_t, kChannels>();
  static_assert(kChannels % 32 == 0);

  struct OwnerTile {
    uint32_t values[kChannels / 16][4];
  };
  using SumTile = TileSums<kChannels>;

  static constexpr int kColumnStep = 1;
  static __device__ int first_column() { return lane_index() % 4 * 2; }

  // rows: the lane's two owner rows, null where there is none. channels: those that exist, a multiple of 8.
  static __device__ void load(OwnerTile& tile, const storage_t* const (&rows)[2], int channels) {
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = 16 * step + 8 * (i / 2) + lane_index() % 4 * 2;
        const storage_t* row = rows[i % 2];
        tile.values[step][i] = row && c < channels ? *reinterpret_cast<const uint32_t*>(row + c) : 0u;
      }
  }

  static __device__ void store(const SumTile& sums, const float (&factors)[2], storage_t* const (&rows)[2],
                               int channels) {
#pragma unroll
    for (int group = 0; group < kChannels / 8; ++group) {
      const int c = 8 * group + lane_index() % 4 * 2;
      if (c >= channels) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (rows[i])
          *reinterpret_cast<uint32_t*>(rows[i] + c) = Half2<storage_t>::pack(
              sums.values[group][2 * i] * factors[i], sums.values[group][2 * i + 1] * factors[i]);
    }
  }

  template <int kGroups>
  static __device__ void scores(const OwnerTile& owners, const char* rows, float (&s)[kGroups][4]) {
    const uint32_t address = shared_address(rows) + lane_index() % 8 * kRowBytes + lane_index() / 8 * 16;
#pragma unroll
    for (int step = 0; step < kChannels / 32; ++step)
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        uint32_t b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(address + i * kGroupColumns * kRowBytes + step * 64));
        mma(storage_t{}, s[i], owners.values[2 * step], b[0], b[1]);
        mma(storage_t{}, s[i], owners.values[2 * step + 1], b[2], b[3]);
      }
  }

  template <int kGroups>
  static __device__ void accumulate(SumTile& sums, const float (&p)[kGroups][4], const char* rows) {
#pragma unroll
    for (int i = 0; i + 1 < kGroups; i += 2) {
      const uint32_t a[4] = {pack(p[i][0], p[i][1]), pack(p[i][2], p[i][3]), pack(p[i + 1][0], p[i + 1][1]),
                             pack(p[i + 1][2], p[i + 1][3])};
      const uint32_t address =
          shared_address(rows) + (i * kGroupColumns + lane_index() % 16) * kRowBytes + lane_index() / 16 * 16;
#pragma unroll
      for (int pair = 0; pair < kChannels / 16; ++pair) {
        uint32_t b[4];
        load_transposed(b, address + pair * 32);
        mma(storage_t{}, sums.values[2 * pair], a, b[0], b[1]);
        mma(storage_t{}, sums.values[2 * pair + 1], a, b[2], b[3]);
      }
    }
    if constexpr (kGroups % 2 != 0) {
      constexpr int i = kGroups - 1;
      const uint32_t a[2] = {pack(p[i][0], p[i][1]), pack(p[i][2], p[i][3])};
      const uint32_t address =
          shared_address(rows) + (i * kGroupColumns + lane_index() % 8) * kRowBytes + lane_index() / 8 * 16;
#pragma unroll
      for (int four = 0; four < kChannels / 32; ++four) {
        uint32_t b[4];
        load_transposed(b, address + four * 64);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma(storage_t{}, sums.values[4 * four + n], a, b[n]);
      }
    }
  }

 private:
  static __device__ uint32_t pack(float low, float high) { return Half2<storage_t>::pack(low, high); }

  static __device__ void load_transposed(uint32_t (&b)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address));
  }
};

// A float as the sum of two TF32 numbers: high is rounded to nearest, the rest is exact before the cores cut it off.
struct SplitFloat {
  uint32_t high;
  uint32_t low;

  __device__ explicit SplitFloat(float value) {
    high = (bits(value) + 0x1000u) & 0xffffe000u;
    low = bits(value - __uint_as_float(high));
  }
};

__device__ inline void mma_split(float (&sum)[4], const float (&a)[4], float b0, float b1) {
  const SplitFloat x0(a[0]), x1(a[1]), x2(a[2]), x3(a[3]), y0(b0), y1(b1);
  const uint32_t high[4] = {x0.high, x1.high, x2.high, x3.high};
  const uint32_t low[4] = {x0.low, x1.low, x2.low, x3.low};
  mma_tf32(sum, low, y0.high, y1.high);
  mma_tf32(sum, high, y0.low, y1.low);
  mma_tf32(sum, high, y0.high, y1.high);
}

template <int kChannels>
class TensorCores<float, kChannels> {
 public:
  static constexpr int kRowBytes = tile_row_bytes<float, kChannels>();
  static_assert(kChannels % 32 == 0);

  // Packets of four channels: the lane has packets lane % 4, lane % 4 + 4, ... of both of its rows.
  struct OwnerTile {
    float4 values[kChannels / 16][2];
  };
  using SumTile = TileSums<kChannels>;

  static constexpr int kColumnStep = 4;
  static __device__ int first_column() { return lane_index() % 4; }

  static __device__ void load(OwnerTile& tile, const float* const (&rows)[2], int channels) {
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = packet(step) * 4;
        tile.values[step][i] = rows[i] && c < channels ? *reinterpret_cast<const float4*>(rows[i] + c) : float4{};
      }
  }

  static __device__ void store(const SumTile& sums, const float (&factors)[2], float* const (&rows)[2], int channels) {
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step) {
      const int c = packet(step) * 4;
      if (c >= channels) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!rows[i]) continue;
        const int first = step / 2 * 4, e = 2 * i + step % 2;
        *reinterpret_cast<float4*>(rows[i] + c) =
            float4{sums.values[first][e] * factors[i], sums.values[first + 1][e] * factors[i],
                   sums.values[first + 2][e] * factors[i], sums.values[first + 3][e] * factors[i]};
      }
    }
  }

  template <int kGroups>
  static __device__ void scores(const OwnerTile& owners, const char* rows, float (&s)[kGroups][4]) {
    const int column = lane_index() / 4;
    const char* row = rows + (column / 2 + column % 2 * 4) * kRowBytes + lane_index() % 4 * 16;
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step) {
      const float4 first = owners.values[step][0], second = owners.values[step][1];
      const float a0[4] = {first.x, second.x, first.y, second.y}, a1[4] = {first.z, second.z, first.w, second.w};
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const float4 b = *reinterpret_cast<const float4*>(row + i * kGroupColumns * kRowBytes + step * 64);
        // as in accumulate(): the cores cut off, so a step is added up there and the steps by the rounding adders
        float part[4] = {}, rest[4] = {};
        mma_split(part, a0, b.x, b.y);
        mma_split(rest, a1, b.z, b.w);
#pragma unroll
        for (int e = 0; e < 4; ++e) s[i][e] += part[e] + rest[e];
      }
    }
  }

  template <int kGroups>
  static __device__ void accumulate(SumTile& sums, const float (&p)[kGroups][4], const char* rows) {
    const int n = lane_index() / 4;
    const char* row = rows + lane_index() % 4 * kRowBytes + (n % 2 * 4 + n / 2) * 16;
#pragma unroll
    for (int step = 0; step < kChannels / 32; ++step) {
      // The cores cut off what does not fit their sum, always toward zero: over thousands of partners that is a bias.
      // Only the groups of this call are added up there, and their sum is added by the rounding adders.
      float part[4][4] = {};
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const float a[4] = {p[i][0], p[i][2], p[i][1], p[i][3]};
        const char* first = row + i * kGroupColumns * kRowBytes + step * 128;
        const float4 b0 = *reinterpret_cast<const float4*>(first);
        const float4 b1 = *reinterpret_cast<const float4*>(first + 4 * kRowBytes);
        mma_split(part[0], a, b0.x, b1.x);
        mma_split(part[1], a, b0.y, b1.y);
        mma_split(part[2], a, b0.z, b1.z);
        mma_split(part[3], a, b0.w, b1.w);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.values[4 * step + j][e] += part[j][e];
    }
  }

 private:
  static __device__ int packet(int step) { return lane_index() % 4 + 4 * step; }
};

}  // namespace s2attn::cuda
