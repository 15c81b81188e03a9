// Sixteen numbers at a time, in plain C++: compilers turn these into whatever vectors they have.
//
// Sums are always formed in the same order, lane by lane and then along one tree, and nothing is
// contracted to fused operations (see CMakeLists.txt). So every instruction set gives the same bits.
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

OUTRIDER_INLINE Lanes spread(float x) { return x - Lanes{}; }

OUTRIDER_INLINE Lanes load(const float* from) {
  Lanes out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

OUTRIDER_INLINE void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof x); }

// The first `count` numbers, and `rest` in the lanes behind them.
OUTRIDER_INLINE Lanes load_part(const float* from, int count, float rest) {
  Lanes out = spread(rest);
  std::memcpy(&out, from, static_cast<std::size_t>(count) * sizeof(float));
  return out;
}

OUTRIDER_INLINE void store_part(float* to, Lanes x, int count) {
  std::memcpy(to, &x, static_cast<std::size_t>(count) * sizeof(float));
}

OUTRIDER_INLINE Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

OUTRIDER_INLINE Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }

OUTRIDER_INLINE float sum_lanes(Lanes x) {
  float part[kLanes];
  store(part, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}

OUTRIDER_INLINE float largest_lane(Lanes x) {
  float part[kLanes];
  store(part, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = part[i] > part[i + width] ? part[i] : part[i + width];
  return part[0];
}

// Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even.
OUTRIDER_INLINE Lanes round_lanes(Lanes x) {
  const Lanes big = spread(12582912.0f);
  return (x + big) - big;
}

// e^x as 2^n e^r with |r| <= ln(2)/2; the polynomial is Taylor's, its error below float32's.
OUTRIDER_INLINE Lanes exp_lanes(Lanes x) {
  x = larger(smaller(x, spread(88.0f)), spread(-87.0f));
  const Lanes n = round_lanes(x * 1.44269504f);
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes p = spread(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const IntLanes power = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  Lanes scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

OUTRIDER_INLINE Lanes tanh_lanes(Lanes x) { return 1.0f - 2.0f / (exp_lanes(2.0f * x) + 1.0f); }

OUTRIDER_INLINE Lanes sigmoid_lanes(Lanes x) { return 1.0f / (exp_lanes(-x) + 1.0f); }

// Abramowitz and Stegun, 7.1.26: at most 1.5e-7 off.
OUTRIDER_INLINE Lanes erf_lanes(Lanes x) {
  const Lanes size = x < 0.0f ? -x : x;
  const Lanes t = 1.0f / (1.0f + 0.3275911f * size);
  Lanes p = spread(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Lanes y = 1.0f - p * t * exp_lanes(-size * size);
  return x < 0.0f ? -y : y;
}

}  // namespace outrider
