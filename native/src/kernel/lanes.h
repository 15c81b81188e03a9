// Sixteen numbers at a time, in plain C++: compilers turn these into whatever vectors they have.
//
// Sums are always formed in the same order, lane by lane and then along one tree, and nothing is
// contracted to fused operations (see CMakeLists.txt). So every instruction set gives the same
// bits.
//
// Everything here is static: files compiled for different machines must not share a function.
#pragma once

#include <cstdint>
#include <cstring>

namespace outrider {

constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(64)));
typedef std::int32_t IntLanes __attribute__((vector_size(64)));

#define OUTRIDER_INLINE static inline __attribute__((always_inline, unused))

OUTRIDER_INLINE Lanes broadcast(float x) { return x - Lanes{}; }

OUTRIDER_INLINE Lanes load(const float* from) {
  Lanes out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

OUTRIDER_INLINE void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof x); }

// The first `count` numbers, and `rest` in the lanes behind them.
OUTRIDER_INLINE Lanes load_partial(const float* from, int count, float rest) {
  Lanes out = broadcast(rest);
  std::memcpy(&out, from, static_cast<std::size_t>(count) * sizeof(float));
  return out;
}

OUTRIDER_INLINE void store_partial(float* to, Lanes x, int count) {
  std::memcpy(to, &x, static_cast<std::size_t>(count) * sizeof(float));
}

// The first `count` lanes, and zeros behind them.
OUTRIDER_INLINE Lanes mask_after(Lanes x, int count) {
  Lanes out = {};
  std::memcpy(&out, &x, static_cast<std::size_t>(count) * sizeof(float));
  return out;
}

OUTRIDER_INLINE Lanes max_lanes(Lanes a, Lanes b) { return a > b ? a : b; }

OUTRIDER_INLINE Lanes min_lanes(Lanes a, Lanes b) { return a < b ? a : b; }

// Every lane meets the one 8, 4, 2 and 1 places away: one tree, whatever the machine.
#define OUTRIDER_REDUCE(x, join)                                                                 \
  x = join(x,                                                                                    \
           __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
  x = join(x,                                                                                    \
           __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
  x = join(x,                                                                                    \
           __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
  x = join(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))

OUTRIDER_INLINE Lanes add_lanes(Lanes a, Lanes b) { return a + b; }

OUTRIDER_INLINE float reduce_sum(Lanes x) {
  OUTRIDER_REDUCE(x, add_lanes);
  return x[0];
}

OUTRIDER_INLINE float reduce_max(Lanes x) {
  OUTRIDER_REDUCE(x, max_lanes);
  return x[0];
}

// Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even.
OUTRIDER_INLINE Lanes round_lanes(Lanes x) {
  const Lanes big = broadcast(12582912.0f);
  return (x + big) - big;
}

// e^x as 2^n e^r with |r| <= ln(2)/2. The polynomial is that of the Cephes library (S. Moshier),
// two units in the last place off at most; its terms are summed in pairs, which waits less.
OUTRIDER_INLINE Lanes exp_lanes(Lanes x) {
  x = max_lanes(min_lanes(x, broadcast(88.0f)), broadcast(-87.0f));
  const Lanes n = round_lanes(x * 1.44269504f);
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const Lanes square = r * r;
  const Lanes low = r * 1.6666665459e-1f + 5.0000001201e-1f;
  const Lanes middle = r * 8.3334519073e-3f + 4.1665795894e-2f;
  const Lanes high = r * 1.9875691500e-4f + 1.3981999507e-3f;
  const Lanes p = (high * square + middle) * square + low;
  const IntLanes power = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  Lanes scale;
  std::memcpy(&scale, &power, sizeof scale);
  return (p * square + (r + 1.0f)) * scale;
}

constexpr int kWideLanes = 8;

typedef double WideLanes __attribute__((vector_size(64)));
typedef float HalfLanes __attribute__((vector_size(32)));
typedef std::int64_t WideIntLanes __attribute__((vector_size(64)));

// The same for 8 doubles up to zero; nothing below -708. The fraction is that of the Cephes library, too, about
// one unit in the last place off.
OUTRIDER_INLINE WideLanes exp_wide(WideLanes x) {
  const WideLanes zero = {};
  const WideIntLanes vanished = ~(x >= zero - 708.0);  // also where it is no number
  x = vanished ? zero : x;
  const WideLanes big = zero + 6755399441055744.0;  // 1.5 * 2^52, as in round_lanes
  const WideLanes shifted = x * 1.4426950408889634 + big;
  const WideLanes n = shifted - big;
  const WideLanes r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6;
  const WideLanes square = r * r;
  const WideLanes p =
      r * ((square * 1.26177193074810590878e-4 + 3.02994407707441961300e-2) * square +
           9.99999999999999999910e-1);
  const WideLanes q =
      ((square * 3.00198505138664455042e-6 + 2.52448340349684104192e-3) * square +
       2.27265548208155028766e-1) *
          square +
      2.00000000000000000009;
  WideIntLanes power;  // its low bits are those of n
  std::memcpy(&power, &shifted, sizeof power);
  power = (power + 1023) << 52;
  WideLanes scale;
  std::memcpy(&scale, &power, sizeof scale);
  const WideLanes mass = (1.0 + 2.0 * (p / (q - p))) * scale;
  return vanished ? zero : mass;
}

OUTRIDER_INLINE Lanes tanh_lanes(Lanes x) { return 1.0f - 2.0f / (exp_lanes(2.0f * x) + 1.0f); }

OUTRIDER_INLINE Lanes sigmoid_lanes(Lanes x) { return 1.0f / (exp_lanes(-x) + 1.0f); }

// Abramowitz and Stegun, 7.1.26: at most 1.5e-7 off.
OUTRIDER_INLINE Lanes erf_lanes(Lanes x) {
  const Lanes size = x < 0.0f ? -x : x;
  const Lanes t = 1.0f / (1.0f + 0.3275911f * size);
  Lanes p = broadcast(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Lanes y = 1.0f - p * t * exp_lanes(-size * size);
  return x < 0.0f ? -y : y;
}

}  // namespace outrider
