// Computes: nothing; occupies the device for a number of SM cycles and says when that began and ended, by two clocks:
//   stamps = {clock64 at the start, clock64 at the end, %globaltimer at the start, %globaltimer at the end}.
//   The SM clock in GHz is (stamps[1] - stamps[0]) / (stamps[3] - stamps[2]).
// Layout: stamps is int64[4], contiguous. Cycles of the SM that ran it, which mean nothing on another one; nanoseconds.
// Mapping: one thread.
// Requires: cycles >= 0.
// Numerics: %globaltimer advances in steps, of up to a microsecond by GPU, so both stamps are taken right after a step:
//   what remains is the time between two readings of it. Where no step comes, both times are 0: no reading.
#pragma once

#include <cstdint>

namespace s2attn::cuda {

// Half a millisecond or more: far above every step of the timer.
constexpr int64_t kLongestStepCycles = 1 << 20;

struct SpinParams {
  int64_t* stamps;
  int64_t cycles;
};

struct ClockStamp {
  int64_t cycles;
  int64_t ns;  // 0: the timer made no step
};

__device__ inline int64_t global_timer_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

__device__ inline ClockStamp stamp_at_step() {
  const int64_t first = clock64(), before = global_timer_ns();
  ClockStamp now{first, before};
  while (now.ns == before) {
    now = {clock64(), global_timer_ns()};
    if (now.cycles - first > kLongestStepCycles) return {now.cycles, 0};
  }
  return now;
}

__global__ void __launch_bounds__(1) spin_between_stamps(SpinParams p) {
  ClockStamp start{}, end{};
  // One copy of the code and a stamp that nobody sees before the two that count: an instruction that has to be fetched
  // between the readings of both clocks would be an error of a good part of a microsecond.
#pragma unroll 1
  for (int turn = 0; turn < 3; ++turn) {
    start = end;
    const int64_t cycles = turn == 2 ? p.cycles : 0;
    while (clock64() - start.cycles < cycles) {
    }
    end = stamp_at_step();
  }
  const bool timed = start.ns != 0 && end.ns != 0;
  p.stamps[0] = start.cycles;
  p.stamps[1] = end.cycles;
  p.stamps[2] = timed ? start.ns : 0;
  p.stamps[3] = timed ? end.ns : 0;
}

}  // namespace s2attn::cuda
