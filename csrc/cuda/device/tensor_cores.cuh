// Products of a tile of 16 owners with partners, on the tensor cores (sm_80 and later).
//
// A warp holds its owners' channels as OwnerTile, made of what it has read of them as OwnerPackets, and their sums as
// SumTile. Partners come 8 at a time, a "column group", from global memory straight into fragments:
//   load(factors, row, channels), scores(owners, factors, S)               S[i][.] = owners . partners of group i
//   load_addends(addends, row, channels), accumulate(sums, P, addends)     sums += P[i][.] partners of group i
// In a backward the same partners are both: load(rows, row, channels), split(partners, rows, scales).
// Element e of a group's four scores belongs to owner row lane / 4 + 8 * (e / 2) and to partner
// kColumnStep * (e % 2) + first_column(). Channels and partners are numbered so that a lane reads 16 bytes at a time.
// float16, bfloat16: m16n8k16; addends are transposed between the lanes (movmatrix), since reading them as the cores
// want them takes four times the cycles of the L1 cache. float32 in a forward: every factor is split into two TF32
// numbers, three products of which (m16n8k8) carry 21 bits; in a backward: split_cores.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "warp.cuh"

namespace s2attn::cuda {

// Older architectures get kernels without a body; policy.h never chooses them there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define S2ATTN_TILES 1
#else
#define S2ATTN_TILES 0
#endif

constexpr int kGroupColumns = 8;

__device__ inline uint32_t bits(float value) { return __float_as_uint(value); }

// 16-bit numbers in the two halves of a register.
template <typename storage_t>
struct Half2;

template <>
struct Half2<__half> {
  static __device__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static __device__ float2 unpack(uint32_t both) { return __half22float2(*reinterpret_cast<const __half2*>(&both)); }
};

template <>
struct Half2<__nv_bfloat16> {
  static __device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static __device__ float2 unpack(uint32_t both) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
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

// Channel c of a row in packets, or channel 0 where there is none: what it is multiplied by is zero then.
template <typename Packet, typename storage_t>
__device__ Packet read_packet(const storage_t* row, int c, int channels) {
  return __ldg(reinterpret_cast<const Packet*>(row + (c < channels ? c : 0)));
}

template <typename storage_t, int kChannels>
class TensorCores {
  static_assert(kChannels % 32 == 0);
  static constexpr int kPackets = kChannels / 32;  // of eight channels, that a lane has of a row

 public:
  static constexpr bool kScaled = false;  // of float32: see SplitCores
  static constexpr int kParkedBytes = 0;

  // The lane has packets lane % 4, lane % 4 + 4, ... of both of its rows.
  struct OwnerPackets {
    uint4 values[kPackets][2];
  };
  // The same, as two fragments each.
  struct OwnerTile {
    uint32_t values[kPackets][2][4];
  };
  using SumTile = TileSums<kChannels>;

  // Packets as in OwnerTile, of one row of every group.
  template <int kGroups>
  struct PartnerTile {
    uint4 values[kGroups][kPackets];
  };
  template <int kGroups>
  using Factors = PartnerTile<kGroups>;
  template <int kGroups>
  using Addends = PartnerTile<kGroups>;
  template <int kGroups>
  using PartnerRows = PartnerTile<kGroups>;

  static constexpr int kColumnStep = 1;
  static __device__ int first_column() { return lane_index() % 4 * 2; }

  // rows: the lane's two owner rows. channels: those that exist, a multiple of 8.
  static __device__ void read(OwnerPackets& packets, const storage_t* const (&rows)[2], int channels) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) packets.values[i][r] = read_packet<uint4>(rows[r], channel(i), channels);
  }
  // The last two, of float32: see SplitCores.
  static __device__ void arrange(OwnerTile& tile, OwnerPackets& packets, int channels, char*, float (&)[2]) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint4& packet = packets.values[i][r];
        if (channel(i) >= channels) packet = uint4{0, 0, 0, 0};
        tile.values[i][0][r] = packet.x, tile.values[i][0][2 + r] = packet.y;
        tile.values[i][1][r] = packet.z, tile.values[i][1][2 + r] = packet.w;
      }
  }

  // This lane's part of the products of both owners with other rows; the owners were arranged.
  static __device__ void dot(const OwnerPackets& owners, const OwnerPackets& others, float (&products)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      products[r] = 0.0f;
      const auto add = [&](uint32_t own, uint32_t other) {
        const float2 a = Half2<storage_t>::unpack(own), b = Half2<storage_t>::unpack(other);
        products[r] += a.x * b.x + a.y * b.y;
      };
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
        const uint4 own = owners.values[i][r], other = others.values[i][r];
        add(own.x, other.x), add(own.y, other.y), add(own.z, other.z), add(own.w, other.w);
      }
    }
  }

  // row(column): where the channels of a partner are.
  template <int kGroups, typename Row>
  static __device__ void load(PartnerTile<kGroups>& tile, const Row& row, int channels) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const storage_t* partner = row(group * kGroupColumns + lane_index() / 4);
#pragma unroll
      for (int i = 0; i < kPackets; ++i) tile.values[group][i] = read_packet<uint4>(partner, channel(i), channels);
    }
  }

  template <int kGroups, typename Row>
  static __device__ void load_addends(PartnerTile<kGroups>& tile, const Row& row, int channels) {
    load(tile, row, channels);
  }

  template <int kGroups>
  static __device__ void split(PartnerTile<kGroups>& tile, const PartnerTile<kGroups>& rows, float (&)[kGroups][2]) {
    tile = rows;
  }

  static __device__ void store(const SumTile& sums, const float (&factors)[2], storage_t* const (&rows)[2],
                               int channels) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (channel(i) >= channels) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows[r]) continue;
        const auto word = [&](int j) {
          const float (&pair)[4] = sums.values[4 * i + j];
          return pack(pair[2 * r] * factors[r], pair[2 * r + 1] * factors[r]);
        };
        *reinterpret_cast<uint4*>(rows[r] + channel(i)) = uint4{word(0), word(1), word(2), word(3)};
      }
    }
  }

  template <int = 1, int kGroups>  // kSteps, of float32: see there
  static __device__ void scores(const OwnerTile& owners, const PartnerTile<kGroups>& partners, float (&s)[kGroups][4]) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        mma(storage_t{}, s[group], owners.values[i][0], partners.values[group][i].x, partners.values[group][i].y);
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        mma(storage_t{}, s[group], owners.values[i][1], partners.values[group][i].z, partners.values[group][i].w);
    }
  }

  template <int kGroups>
  static __device__ void accumulate(SumTile& sums, const float (&p)[kGroups][4], const PartnerTile<kGroups>& partners) {
#pragma unroll
    for (int group = 0; group < kGroups; group += 2) {
      const uint32_t first[2] = {pack(p[group][0], p[group][1]), pack(p[group][2], p[group][3])};
      if (group + 1 == kGroups) {
#pragma unroll
        for (int i = 0; i < kPackets; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            mma(storage_t{}, sums.values[4 * i + j], first, transposed(partners.values[group][i], j));
      } else {
        const int next = group + 1 < kGroups ? group + 1 : group;
        const uint32_t a[4] = {first[0], first[1], pack(p[next][0], p[next][1]), pack(p[next][2], p[next][3])};
#pragma unroll
        for (int i = 0; i < kPackets; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            mma(storage_t{}, sums.values[4 * i + j], a, transposed(partners.values[group][i], j),
                transposed(partners.values[next][i], j));
      }
    }
  }

  // Word j of a packet is a row of an 8 x 8 matrix, partners by channels; sums are over partners.
  static __device__ uint32_t transposed(const uint4& packet, int j) {
    const uint32_t word = j == 0 ? packet.x : j == 1 ? packet.y : j == 2 ? packet.z : packet.w;
    uint32_t column;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(word));
    return column;
  }

 private:
  static __device__ int channel(int packet) { return 32 * packet + lane_index() % 4 * 8; }
  static __device__ uint32_t pack(float low, float high) { return Half2<storage_t>::pack(low, high); }
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

template <int kCount>
struct SplitFloats {
  uint32_t high[kCount];
  uint32_t low[kCount];
};

template <int kCount>
__device__ SplitFloats<kCount> split_floats(const float (&values)[kCount]) {
  SplitFloats<kCount> splits;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const SplitFloat split(values[i]);
    splits.high[i] = split.high, splits.low[i] = split.low;
  }
  return splits;
}

template <int kChannels>
class TensorCores<float, kChannels> {
 public:
  static_assert(kChannels % 32 == 0);

  using SumTile = TileSums<kChannels>;

  // Packets of four channels: the lane has packets lane % 4, lane % 4 + 4, ... of both of its rows.
  struct OwnerPackets {
    float4 values[kChannels / 16][2];
  };
  // Owners split once. They lie in shared memory, kParkedBytes of the warp's own, read 16 bytes at a time,
  // conflict-free: registers are worth more.
  struct OwnerTile {
    const uint4* parked;
  };
  static constexpr int kParkedBytes = 2 * kChannels / 8 * kWarp * static_cast<int>(sizeof(uint4));

  template <int kGroups>
  struct Factors {
    float4 values[kGroups][kChannels / 16];
  };
  template <int kGroups>
  struct Addends {
    float4 values[kGroups][2][kChannels / 32];
  };

  static constexpr int kColumnStep = 4;
  static __device__ int first_column() { return lane_index() % 4; }
  static __device__ int factor_column() { return lane_index() / 8 + lane_index() / 4 % 2 * 4; }

  template <int kGroups, typename Row>
  static __device__ void load(Factors<kGroups>& factors, const Row& row, int channels) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const float* partner = row(i * kGroupColumns + factor_column());
#pragma unroll
      for (int step = 0; step < kChannels / 16; ++step)
        factors.values[i][step] = read_packet<float4>(partner, packet(step) * 4, channels);
    }
  }

  template <int kGroups, typename Row>
  static __device__ void load_addends(Addends<kGroups>& addends, const Row& row, int channels) {
    const int n = lane_index() / 4;
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float* partner = row(i * kGroupColumns + first_column() + kColumnStep * e);
#pragma unroll
        for (int step = 0; step < kChannels / 32; ++step)
          addends.values[i][e][step] = read_packet<float4>(partner, (8 * step + n % 2 * 4 + n / 2) * 4, channels);
      }
  }

  static __device__ void read(OwnerPackets& packets, const float* const (&rows)[2], int channels) {
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i) packets.values[step][i] = read_packet<float4>(rows[i], packet(step) * 4, channels);
  }
  // The last one, of scaled rows: see SplitCores.
  static __device__ void arrange(OwnerTile& tile, const OwnerPackets& packets, int channels, char* memory,
                                 float (&)[2]) {
    uint4* parked = reinterpret_cast<uint4*>(memory) + lane_index();
    tile.parked = parked;
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step) {
      const bool exists = packet(step) * 4 < channels;
      const float4 first = exists ? packets.values[step][0] : float4{};
      const float4 second = exists ? packets.values[step][1] : float4{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const SplitFloats<4> owner = half ? split_floats<4>({first.z, second.z, first.w, second.w})
                                          : split_floats<4>({first.x, second.x, first.y, second.y});
        const int i = 2 * step + half;
        parked[i * kWarp] = uint4{owner.low[0], owner.low[1], owner.low[2], owner.low[3]};
        parked[(i + kChannels / 8) * kWarp] = uint4{owner.high[0], owner.high[1], owner.high[2], owner.high[3]};
      }
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

  // kSteps: of 16 channels, whose large products the cores add up before a rounding adder does.
  template <int kSteps, int kGroups>
  static __device__ void scores(const OwnerTile& owners, const Factors<kGroups>& factors, float (&s)[kGroups][4]) {
    static_assert(kChannels / 16 % kSteps == 0, "no product may be left out");
    // The cores cut off what does not fit their sum, so that sums of large products over 16 kSteps channels are added
    // up by the rounding adders. Small products have sums of their own: products that do not wait for each other
    // alternate.
    float small[2][kGroups][4] = {}, large[kGroups][4];
#pragma unroll
    for (int step = 0; step < kChannels / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (step % kSteps == 0) large[i][e] = 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int fragment = 2 * step + half;
        const uint4 low_parts = owners.parked[fragment * kWarp];
        const uint4 high_parts = owners.parked[(fragment + kChannels / 8) * kWarp];
        const SplitFloats<4> owner{{high_parts.x, high_parts.y, high_parts.z, high_parts.w},
                                   {low_parts.x, low_parts.y, low_parts.z, low_parts.w}};
        uint32_t high[kGroups][2], low[kGroups][2];
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const float4 b = factors.values[i][step];
          const SplitFloat x(half ? b.z : b.x), y(half ? b.w : b.y);
          high[i][0] = x.high, low[i][0] = x.low, high[i][1] = y.high, low[i][1] = y.low;
        }
#pragma unroll
        for (int i = 0; i < kGroups; ++i) mma_tf32(small[0][i], owner.low, high[i][0], high[i][1]);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) mma_tf32(large[i], owner.high, high[i][0], high[i][1]);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) mma_tf32(small[1][i], owner.high, low[i][0], low[i][1]);
      }
#pragma unroll
      for (int i = 0; i < kGroups; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (step % kSteps == kSteps - 1) s[i][e] = step < kSteps ? large[i][e] : s[i][e] + large[i][e];
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] += small[0][i][e] + small[1][i][e];
  }

  template <int kGroups>
  static __device__ void accumulate(SumTile& sums, const float (&p)[kGroups][4], const Addends<kGroups>& addends) {
#pragma unroll
    for (int step = 0; step < kChannels / 32; ++step) {
      // The cores cut off what does not fit their sum, always toward zero: over thousands of partners that is a bias.
      // Only the groups of this call are added up there, and their sum is added by the rounding adders.
      float part[4][4] = {};
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const float4 b0 = addends.values[i][0][step], b1 = addends.values[i][1][step];
        const auto a = split_floats<4>({p[i][0], p[i][2], p[i][1], p[i][3]});
        const auto first = split_floats<4>({b0.x, b0.y, b0.z, b0.w}),
                   second = split_floats<4>({b1.x, b1.y, b1.z, b1.w});
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_tf32(part[j], a.low, first.high[j], second.high[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_tf32(part[j], a.high, first.low[j], second.low[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_tf32(part[j], a.high, first.high[j], second.high[j]);
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
