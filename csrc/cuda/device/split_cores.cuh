// Products of float32 numbers on the float16 tensor cores (sm_80 and later), at twice the rate of TF32: every number as
// the sum of two float16 numbers, three products of which carry 22 bits (m16n8k16).
//
// float16 has a small range, so that every row is multiplied by a power of two first, which brings its largest number
// to 2^14 .. 2^15: what is then lost of smaller ones is below 2^-39 of the largest. Products of rows are multiplied by
// the scales of both, which take that back, and SumScales does the same for what partners are multiplied by. The
// interface is that of TensorCores<__half>, whose fragments these are, high parts and low ones.
#pragma once

#include "tensor_cores.cuh"

namespace s2attn::cuda {

// Two float32 numbers as float16 ones, rounded to nearest, and what that lost, in float16 too.
struct SplitHalves {
  uint32_t high;
  uint32_t low;

  __device__ SplitHalves(float first, float second) : high(Half2<__half>::pack(first, second)) {
    const float2 kept = Half2<__half>::unpack(high);
    low = Half2<__half>::pack(first - kept.x, second - kept.y);
  }
};

// What the numbers of a row are multiplied by, and what takes it back. highest: of the lane's numbers, absolute.
struct RowScale {
  float scale;
  float back;

  // Of the four lanes that share a row.
  __device__ explicit RowScale(float highest) {
    highest = fmaxf(highest, __shfl_xor_sync(kFullMask, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kFullMask, highest, 2));
    // 2^126 is as far as a scale goes: numbers below 2^-112 keep fewer bits
    const uint32_t power = max(bits(highest), 15u << 23) & (0xffu << 23);
    scale = __uint_as_float((268u << 23) - power);
    back = __uint_as_float(power - (14u << 23));
  }
};

__device__ inline float highest_of(float highest, const float4& values) {
  return fmaxf(fmaxf(highest, fmaxf(fabsf(values.x), fabsf(values.y))), fmaxf(fabsf(values.z), fabsf(values.w)));
}

template <int kChannels>
class SplitCores {
  using Half = TensorCores<__half, kChannels>;
  static constexpr int kPackets = kChannels / 32;

 public:
  static constexpr bool kScaled = true;
  using SumTile = TileSums<kChannels>;

  // Packets of eight channels, as those of TensorCores<__half>, in two parts.
  struct OwnerPackets {
    float4 values[kPackets][2][2];
  };

  // Owners lie in shared memory, kParkedBytes of the warp's own, read 16 bytes at a time, conflict-free: registers are
  // worth more.
  struct OwnerTile {
    const uint4* parked;
  };
  static constexpr int kParkedBytes = 4 * kPackets * kWarp * static_cast<int>(sizeof(uint4));

  template <int kGroups>
  struct PartnerRows {
    float4 values[kGroups][kPackets][2];
  };
  template <int kGroups>
  struct PartnerTile {
    typename Half::template PartnerTile<kGroups> high, low;
  };

  static constexpr int kColumnStep = Half::kColumnStep;
  static __device__ int first_column() { return Half::first_column(); }

  static __device__ void read(OwnerPackets& packets, const float* const (&rows)[2], int channels) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int part = 0; part < 2; ++part)
          packets.values[i][r][part] = read_packet<float4>(rows[r], channel(i, part), channels);
  }

  // scales: what products of the lane's two owners are to be multiplied by.
  static __device__ void arrange(OwnerTile& tile, OwnerPackets& packets, int channels, char* memory,
                                 float (&scales)[2]) {
    uint32_t high[kPackets][2][4], low[kPackets][2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = 0.0f;
#pragma unroll
      for (int i = 0; i < kPackets; ++i)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          float4& packet = packets.values[i][r][part];
          if (channel(i, part) >= channels) packet = float4{};
          highest = highest_of(highest, packet);
        }
      const RowScale row(highest);
      scales[r] = row.back;
#pragma unroll
      for (int i = 0; i < kPackets; ++i)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const float4 packet = packets.values[i][r][part];
          const SplitHalves first(packet.x * row.scale, packet.y * row.scale);
          const SplitHalves second(packet.z * row.scale, packet.w * row.scale);
          high[i][part][r] = first.high, high[i][part][2 + r] = second.high;
          low[i][part][r] = first.low, low[i][part][2 + r] = second.low;
        }
    }
    uint4* parked = reinterpret_cast<uint4*>(memory) + lane_index();
    const auto park = [&](const uint32_t (&fragment)[4]) {
      *parked = uint4{fragment[0], fragment[1], fragment[2], fragment[3]};
      parked += kWarp;
    };
    tile.parked = parked;
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        park(high[i][part]);
        park(low[i][part]);
      }
  }

  // This lane's part of the products of both owners with other rows; the owners were arranged.
  static __device__ void dot(const OwnerPackets& owners, const OwnerPackets& others, float (&products)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      products[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < kPackets; ++i)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const float4 a = owners.values[i][r][part], b = others.values[i][r][part];
          products[r] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
        }
    }
  }

  // row(column): where the channels of a partner are.
  template <int kGroups, typename Row>
  static __device__ void load(PartnerRows<kGroups>& rows, const Row& row, int channels) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float* partner = row(group * kGroupColumns + lane_index() / 4);
#pragma unroll
      for (int i = 0; i < kPackets; ++i)
#pragma unroll
        for (int part = 0; part < 2; ++part)
          rows.values[group][i][part] = read_packet<float4>(partner, channel(i, part), channels);
    }
  }

  // scales: what products of the lane's two columns of a group are to be multiplied by.
  template <int kGroups>
  static __device__ void split(PartnerTile<kGroups>& tile, const PartnerRows<kGroups>& rows,
                               float (&scales)[kGroups][2]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float highest = 0.0f;
#pragma unroll
      for (int i = 0; i < kPackets; ++i)
#pragma unroll
        for (int part = 0; part < 2; ++part) highest = highest_of(highest, rows.values[group][i][part]);
      const RowScale row(highest);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        scales[group][e] = __shfl_sync(kFullMask, row.back, (first_column() + kColumnStep * e) * 4);
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
        const float4 first = rows.values[group][i][0], second = rows.values[group][i][1];
        const SplitHalves x(first.x * row.scale, first.y * row.scale), y(first.z * row.scale, first.w * row.scale);
        const SplitHalves z(second.x * row.scale, second.y * row.scale), w(second.z * row.scale, second.w * row.scale);
        tile.high.values[group][i] = uint4{x.high, y.high, z.high, w.high};
        tile.low.values[group][i] = uint4{x.low, y.low, z.low, w.low};
      }
    }
  }

  template <int kGroups>
  static __device__ void scores(const OwnerTile& owners, const PartnerTile<kGroups>& partners, float (&s)[kGroups][4]) {
    // The cores cut off what does not fit their sum, so that sums of large products over 32 channels, a packet of every
    // lane, are added up by the rounding adders. Small products have a sum of their own.
    constexpr int kSteps = 2;  // of 16 channels
    static_assert(2 * kPackets % kSteps == 0, "no product may be left out");
    float small[kGroups][4] = {}, large[kGroups][4];
#pragma unroll
    for (int i = 0; i < 2 * kPackets; ++i) {
      const auto fragment = [&](int part) { return owners.parked[(2 * i + part) * kWarp]; };
      const uint4 high = fragment(0), low = fragment(1);
      const auto multiply = [&](float (&sum)[4], const uint4& own, const uint4& packet) {
        mma(__half{}, sum, {own.x, own.y, own.z, own.w}, i % 2 ? packet.z : packet.x, i % 2 ? packet.w : packet.y);
      };
      if (i % kSteps == 0) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
          for (int e = 0; e < 4; ++e) large[group][e] = 0.0f;
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) multiply(small[group], low, partners.high.values[group][i / 2]);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) multiply(large[group], high, partners.high.values[group][i / 2]);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) multiply(small[group], high, partners.low.values[group][i / 2]);
      if (i % kSteps == kSteps - 1) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[group][e] = i < kSteps ? large[group][e] : s[group][e] + large[group][e];
      }
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[group][e] += small[group][e];
  }

  // p: below 2^16 (SumScales).
  template <int kGroups>
  static __device__ void accumulate(SumTile& sums, const float (&p)[kGroups][4], const PartnerTile<kGroups>& partners) {
    static_assert(kGroups <= 2);
    constexpr int kLast = kGroups - 1;
    const SplitHalves a[4] = {
        {p[0][0], p[0][1]}, {p[0][2], p[0][3]}, {p[kLast][0], p[kLast][1]}, {p[kLast][2], p[kLast][3]}};
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      // Only the groups of this call are added up by the cores, which cut off toward zero: over thousands of partners
      // that would be a bias. Their sum is added by the rounding adders.
      float part[4][4] = {};
      uint32_t high[4][kGroups], low[4][kGroups];
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          high[j][group] = Half::transposed(partners.high.values[group][i], j);
          low[j][group] = Half::transposed(partners.low.values[group][i], j);
        }
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply(part[j], {a[0].low, a[1].low, a[2].low, a[3].low}, high[j]);
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply(part[j], {a[0].high, a[1].high, a[2].high, a[3].high}, low[j]);
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply(part[j], {a[0].high, a[1].high, a[2].high, a[3].high}, high[j]);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.values[4 * i + j][e] += part[j][e];
    }
  }

  static __device__ void store(const SumTile& sums, const float (&factors)[2], float* const (&rows)[2], int channels) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        if (channel(i, part) >= channels) continue;
        const float (&first)[4] = sums.values[4 * i + 2 * part], (&second)[4] = sums.values[4 * i + 2 * part + 1];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (rows[r])
            *reinterpret_cast<float4*>(rows[r] + channel(i, part)) =
                float4{first[2 * r] * factors[r], first[2 * r + 1] * factors[r], second[2 * r] * factors[r],
                       second[2 * r + 1] * factors[r]};
      }
  }

 private:
  static __device__ int channel(int packet, int part) { return 32 * packet + lane_index() % 4 * 8 + 4 * part; }

  static __device__ void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma(__half{}, sum, a, b[0], b[1]);
  }
  static __device__ void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[1]) {
    mma(__half{}, sum, {a[0], a[1]}, b[0]);
  }
};

// Powers of two that the addends of a warp's sums are multiplied by, one for each of the lane's two owners, so that
// they are numbers of float16: lowered, with the sums, when one would be above 2^15.
template <bool kScaled>
struct SumScales {
  float values[2] = {0x1p126f, 0x1p126f};

  // weights: of owners (e / 2) and partners (e % 2); multiplied by the partners' scales, and by these.
  template <int kGroups, typename Sums>
  __device__ void apply(float (&weights)[kGroups][4], const float (&partners)[kGroups][2], Sums& sums) {
    float highest[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weights[i][e] *= partners[i][e % 2];
        highest[e / 2] = fmaxf(highest[e / 2], fabsf(weights[i][e]));
      }
    const bool above = highest[0] * values[0] > 0x1p15f || highest[1] * values[1] > 0x1p15f;
    if (__any_sync(kFullMask, above)) lower(highest, sums);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[i][e] *= values[e / 2];
  }

  // Leaves the sums as they are without these.
  template <typename Sums>
  __device__ void remove(Sums& sums) const {
    sums.scale(1.0f / values[0], 1.0f / values[1]);
  }

 private:
  // The highest of this step to 2^10 .. 2^11: others may follow.
  template <typename Sums>
  __device__ void lower(const float (&highest)[2], Sums& sums) {
    float factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float lowered = fminf(values[i], RowScale(highest[i]).scale * 0x1p-4f);
      factors[i] = lowered / values[i];
      values[i] = lowered;
    }
    sums.scale(factors[0], factors[1]);
  }
};

// Of numbers that need none.
template <>
struct SumScales<false> {
  template <int kGroups, typename Sums>
  __device__ void apply(float (&)[kGroups][4], const float (&)[kGroups][2], Sums&) {}
  template <typename Sums>
  __device__ void remove(Sums&) const {}
};

}  // namespace s2attn::cuda
