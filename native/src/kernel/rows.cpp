// Row functions. CMake compiles this file once for each family of machines, as OUTRIDER_FAMILY.
#include "kernel.h"
#include "lanes.h"

#include <cmath>

namespace outrider {
namespace {

constexpr float kNormEpsilon = 1e-5f;

OUTRIDER_INLINE Lanes absolute(Lanes x) { return x < 0.0f ? -x : x; }

// Calls part(offset, lanes, count) for all of a row; the last may be shorter.
template <typename Part>
OUTRIDER_INLINE void for_parts(int n, Part part) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) part(i, kLanes);
  if (i < n) part(i, n - i);
}

OUTRIDER_INLINE Lanes take(const float* x, int count, float rest = 0.0f) {
  return count == kLanes ? load(x) : load_part(x, count, rest);
}

OUTRIDER_INLINE void put(float* x, Lanes value, int count) {
  if (count == kLanes)
    store(x, value);
  else
    store_part(x, value, count);
}

// Joins part(offset, count) over a row. Four chains, so that no step waits for the one before it.
template <typename Join, typename Part>
OUTRIDER_INLINE Lanes join_parts(int n, Join join, Lanes start, Part part) {
  Lanes chain[4] = {start, start, start, start};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int c = 0; c < 4; ++c) chain[c] = join(chain[c], part(i + c * kLanes, kLanes));
  for (; i < n; i += kLanes) chain[0] = join(chain[0], part(i, n - i < kLanes ? n - i : kLanes));
  return join(join(chain[0], chain[1]), join(chain[2], chain[3]));
}

float quantise(const float* x, int n, std::int8_t* bytes, int depth) {
  const auto size = [&](int i, int count) { return absolute(take(x + i, count)); };
  const float limit = largest_lane(join_parts(n, larger, spread(0.0f), size));
  // A row of zeros, or of numbers too small to divide by, is zero; so is one with no limit at all.
  const bool usable = limit > 1e-30f && limit < 1e30f;
  const float inverse = usable ? 127.0f / limit : 0.0f;
  for_parts(n, [&](int i, int count) {
    const Lanes scaled = usable ? take(x + i, count) * inverse : spread(0.0f);
    typedef std::int8_t Bytes __attribute__((vector_size(16)));
    const Bytes small =
        __builtin_convertvector(__builtin_convertvector(round_lanes(scaled), IntLanes), Bytes);
    std::memcpy(bytes + i, &small, static_cast<std::size_t>(count));
  });
  if (depth > n) std::memset(bytes + n, 0, static_cast<std::size_t>(depth - n));
  return usable ? limit / 127.0f : 0.0f;
}

void finish(const std::int32_t* sums, int n, float scale, const float* scales, const float* bias,
            float* out) {
  for_parts(n, [&](int i, int count) {
    IntLanes whole;
    std::memcpy(&whole, sums + i, sizeof whole);  // sums, scales and bias are padded to 16
    const Lanes value = __builtin_convertvector(whole, Lanes);
    put(out + i, value * (load(scales + i) * scale) + load(bias + i), count);
  });
}

template <int kRows>
OUTRIDER_INLINE void multiply_rows(const float* const* x, int depth, const float* panel,
                                   const float* bias, int n, float* const* out) {
  Lanes sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = spread(0.0f);
  for (int k = 0; k < depth; ++k) {
    const Lanes weight = load(panel + k * kLanes);
    for (int r = 0; r < kRows; ++r) sum[r] = sum[r] + weight * x[r][k];
  }
  for (int r = 0; r < kRows; ++r) put(out[r], sum[r] + load(bias), n);
}

void multiply(const float* const* x, int rows, int depth, const float* panel, const float* bias,
              int n, float* const* out) {
  int r = 0;
  for (; r + 8 <= rows; r += 8) multiply_rows<8>(x + r, depth, panel, bias, n, out + r);
  for (; r + 2 <= rows; r += 2) multiply_rows<2>(x + r, depth, panel, bias, n, out + r);
  for (; r < rows; ++r) multiply_rows<1>(x + r, depth, panel, bias, n, out + r);
}

void add(float* x, const float* y, int n) {
  for_parts(n,
            [&](int i, int count) { put(x + i, take(x + i, count) + take(y + i, count), count); });
}

void normalise(const float* x, int n, const float* weight, const float* bias, float* out) {
  const Lanes zero = spread(0.0f);
  const auto value = [&](int i, int count) { return take(x + i, count); };
  const float mean = sum_lanes(join_parts(n, add_lanes, zero, value)) / static_cast<float>(n);
  const auto square = [&](int i, int count) {
    const Lanes off = take(x + i, count, mean) - mean;
    return off * off;
  };
  const float variance = sum_lanes(join_parts(n, add_lanes, zero, square)) / static_cast<float>(n);
  const float inverse = 1.0f / std::sqrt(variance + kNormEpsilon);
  for_parts(n, [&](int i, int count) {
    const Lanes unit = (take(x + i, count) - mean) * inverse;
    put(out + i, unit * take(weight + i, count) + take(bias + i, count), count);
  });
}

OUTRIDER_INLINE Lanes bend(Activation kind, Lanes x) {
  switch (kind) {
    case Activation::gelu:
      return 0.5f * x * (1.0f + erf_lanes(x * 0.70710678f));
    case Activation::silu:
      return x * sigmoid_lanes(x);
    default:
      return larger(x, spread(0.0f));
  }
}

void activate(Activation kind, float* x, int n) {
  for_parts(n, [&](int i, int count) { put(x + i, bend(kind, take(x + i, count)), count); });
}

void gate(Activation kind, float* x, const float* y, int n) {
  for_parts(n, [&](int i, int count) {
    put(x + i, bend(kind, take(x + i, count)) * take(y + i, count), count);
  });
}

// q . k for 16 keys at once. Four sums at a time, so that additions need not wait for each other.
OUTRIDER_INLINE Lanes score_block(const float* query, const float* block, int width) {
  Lanes sum[4] = {spread(0.0f), spread(0.0f), spread(0.0f), spread(0.0f)};
  int k = 0;
  for (; k + 4 <= width; k += 4)
    for (int i = 0; i < 4; ++i) sum[i] = sum[i] + load(block + (k + i) * kLanes) * query[k + i];
  for (; k < width; ++k) sum[0] = sum[0] + load(block + k * kLanes) * query[k];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Writes the scores of all keys a query sees, and a score that counts nothing behind them.
OUTRIDER_INLINE void score(const Sight& sight, int width, float scale, float* scores) {
  for (int j = 0; j < sight.visible; j += kLanes) {
    const Lanes found = score_block(sight.query, sight.keys + j * width, width) * scale;
    store(scores + j, spread(-1e30f));
    put(scores + j, found, sight.visible - j < kLanes ? sight.visible - j : kLanes);
  }
}

// Turns scores into weights that are not divided by their sum yet, and returns one over that.
OUTRIDER_INLINE float weigh(float* scores, int count) {
  Lanes most = spread(-1e30f);
  for (int j = 0; j < count; j += kLanes) most = larger(most, load(scores + j));
  const float peak = largest_lane(most);
  Lanes total = spread(0.0f);
  for (int j = 0; j < count; j += kLanes) {
    const Lanes weight = exp_lanes(load(scores + j) - peak);
    store(scores + j, weight);
    total = total + (count - j < kLanes ? load_part(scores + j, count - j, 0.0f) : weight);
  }
  return 1.0f / sum_lanes(total);
}

OUTRIDER_INLINE void mix(const Sight& sight, int width, const float* weights, float share) {
  int d = 0;
  for (; d + 4 * kLanes <= width; d += 4 * kLanes) {
    Lanes sum[4] = {spread(0.0f), spread(0.0f), spread(0.0f), spread(0.0f)};
    for (int j = 0; j < sight.visible; ++j)
      for (int i = 0; i < 4; ++i)
        sum[i] = sum[i] + load(sight.values + j * width + d + i * kLanes) * weights[j];
    for (int i = 0; i < 4; ++i) store(sight.out + d + i * kLanes, sum[i] * share);
  }
  for_parts(width - d, [&](int i, int lanes) {
    Lanes sum = spread(0.0f);
    for (int j = 0; j < sight.visible; ++j)
      sum = sum + take(sight.values + j * width + d + i, lanes) * weights[j];
    put(sight.out + d + i, sum * share, lanes);
  });
}

// Step by step for several queries, not query by query: each step of one waits for the step before,
// and meanwhile the machine works on the next.
void attend(const Sight* sights, int count, int width, float scale, float* scores) {
  for (int first = 0; first < count; first += kTogether) {
    const int some = count - first < kTogether ? count - first : kTogether;
    int stride = 0;
    for (int n = 0; n < some; ++n)
      stride = sights[first + n].visible > stride ? sights[first + n].visible : stride;
    stride = (stride + kLanes - 1) / kLanes * kLanes;
    float share[kTogether];
    for (int n = 0; n < some; ++n) score(sights[first + n], width, scale, scores + n * stride);
    for (int n = 0; n < some; ++n) share[n] = weigh(scores + n * stride, sights[first + n].visible);
    for (int n = 0; n < some; ++n) mix(sights[first + n], width, scores + n * stride, share[n]);
  }
}

void rotate(float* x, int width, const float* sines, const float* cosines) {
  const int half = width / 2;
  for (int k = 0; k < half; ++k) {
    const float left = x[k], right = x[half + k];
    x[k] = left * cosines[k] - right * sines[k];
    x[half + k] = left * sines[k] + right * cosines[k];
  }
}

void tanh_row(float* x, int n) {
  for_parts(n, [&](int i, int count) { put(x + i, tanh_lanes(take(x + i, count)), count); });
}

float dot(const float* x, const float* y, int n) {
  const auto product = [&](int i, int count) { return take(x + i, count) * take(y + i, count); };
  return sum_lanes(join_parts(n, add_lanes, spread(0.0f), product));
}

void softmax(float* x, int n, float temperature) {
  Lanes most = spread(-1e30f);
  for_parts(n, [&](int i, int count) { most = larger(most, take(x + i, count, -1e30f)); });
  const float peak = largest_lane(most), inverse_temperature = 1.0f / temperature;
  Lanes total = spread(0.0f);
  for_parts(n, [&](int i, int count) {
    put(x + i, exp_lanes((take(x + i, count) - peak) * inverse_temperature), count);
    total = total + take(x + i, count);
  });
  const float inverse = 1.0f / sum_lanes(total);
  for_parts(n, [&](int i, int count) { put(x + i, take(x + i, count) * inverse, count); });
}

OUTRIDER_INLINE float largest_of_64(const float* x) {
  const Lanes left = larger(load(x), load(x + kLanes));
  return largest_lane(larger(left, larger(load(x + 2 * kLanes), load(x + 3 * kLanes))));
}

int largest(const float* x, int n) {
  const auto value = [&](int i, int count) { return take(x + i, count, -3e38f); };
  const float wanted = largest_lane(join_parts(n, larger, spread(-3e38f), value));
  int i = 0;
  while (i + 4 * kLanes <= n && largest_of_64(x + i) != wanted) i += 4 * kLanes;
  for (; i < n; ++i)
    if (x[i] == wanted) return i;
  return 0;  // there is nothing but infinities below all numbers, or no number at all
}

// Keeps the best seen so far in order. 64 that are all below the worst of them cost one test.
void top(const float* x, int n, int count, int* places, float* values) {
  constexpr int kStep = 4 * kLanes;
  int held = 0;
  for (int start = 0; start < n; start += kStep) {
    const int end = n - start < kStep ? n : start + kStep;
    if (held == count && end - start == kStep && !(largest_of_64(x + start) > values[held - 1]))
      continue;
    for (int i = start; i < end; ++i) {
      if (held == count && !(x[i] > values[held - 1])) continue;
      int place = held < count ? held++ : held - 1;
      for (; place > 0 && x[i] > values[place - 1]; --place) {
        values[place] = values[place - 1];
        places[place] = places[place - 1];
      }
      values[place] = x[i];
      places[place] = i;
    }
  }
}

}  // namespace

extern const RowFunctions OUTRIDER_FAMILY;
const RowFunctions OUTRIDER_FAMILY = {
    quantise, finish, multiply, add, normalise, activate, gate,
    attend,   rotate, tanh_row, dot, softmax,   largest,  top,
};

}  // namespace outrider
