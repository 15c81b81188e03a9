// Row functions. CMake compiles this file once for each family of machines, as OUTRIDER_FAMILY.
#include "kernel.h"
#include "lanes.h"

#include <cmath>

namespace outrider {
namespace {

// Calls part(offset, lanes, count) for all of a row; the last may be shorter.
template <typename Part>
OUTRIDER_INLINE void for_each_vector(int n, Part part) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) part(i, kLanes);
  if (i < n) part(i, n - i);
}

OUTRIDER_INLINE Lanes load_up_to(const float* x, int count, float rest = 0.0f) {
  return count == kLanes ? load(x) : load_partial(x, count, rest);
}

OUTRIDER_INLINE void store_up_to(float* x, Lanes value, int count) {
  if (count == kLanes)
    store(x, value);
  else
    store_partial(x, value, count);
}

// Reduces part(offset, count) over a row, in four independent chains to hide latency.
template <typename Join, typename Part>
OUTRIDER_INLINE Lanes reduce_row(int n, Join join, Lanes start, Part part) {
  Lanes chain[4] = {start, start, start, start};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int c = 0; c < 4; ++c) chain[c] = join(chain[c], part(i + c * kLanes, kLanes));
  for (; i < n; i += kLanes) chain[0] = join(chain[0], part(i, n - i < kLanes ? n - i : kLanes));
  return join(join(chain[0], chain[1]), join(chain[2], chain[3]));
}

float quantise(const float* x, int n, std::int8_t* bytes, int depth) {
  const auto size = [&](int i, int count) { return abs_lanes(load_up_to(x + i, count)); };
  const float limit = reduce_max(reduce_row(n, max_lanes, broadcast(0.0f), size));
  // Rows of zeros, of numbers too small to divide by (such as denormals), or with an infinity
  // become zero. The bytes of a row with NaN are undefined.
  const bool usable = limit > 1e-30f && limit < 1e30f;
  const float inverse = usable ? 127.0f / limit : 0.0f;
  for_each_vector(n, [&](int i, int count) {
    const Lanes scaled = usable ? load_up_to(x + i, count) * inverse : broadcast(0.0f);
    store_bytes(bytes + i, to_ints(round_lanes(scaled)), count);
  });
  if (depth > n) std::memset(bytes + n, 0, static_cast<std::size_t>(depth - n));
  return usable ? limit / 127.0f : 0.0f;
}

void dequantise(const std::int32_t* sums, int n, float scale, const float* scales,
                const float* bias, float* out) {
  for_each_vector(n, [&](int i, int count) {
    const Lanes value = to_floats(load_as<IntLanes>(sums + i));  // all are padded to 16
    store_up_to(out + i, value * (load(scales + i) * scale) + load(bias + i), count);
  });
}

// Products are summed in groups, so that the rounding error grows with the size of a group and the
// number of groups, not with the depth.
template <int kRows>
OUTRIDER_INLINE void multiply_rows(const float* const* x, int depth, const float* panel,
                                   const float* bias, int n, float* const* out) {
  Lanes total[kRows], sum[kRows];
  for (int r = 0; r < kRows; ++r) total[r] = broadcast(0.0f);
  for (int begin = 0; begin < depth; begin += kSummedApart) {
    const int end = std::min(begin + kSummedApart, depth);
    for (int r = 0; r < kRows; ++r) sum[r] = broadcast(0.0f);
    for (int k = begin; k < end; ++k) {
      const Lanes weight = load(panel + k * kLanes);
      for (int r = 0; r < kRows; ++r) sum[r] = sum[r] + weight * x[r][k];
    }
    for (int r = 0; r < kRows; ++r) total[r] = total[r] + sum[r];
  }
  for (int r = 0; r < kRows; ++r) store_up_to(out[r], total[r] + load(bias), n);
}

void multiply_panel(const float* const* x, int rows, int depth, const float* panel,
                    const float* bias, int n, float* const* out) {
  int r = 0;
  for (; r + 8 <= rows; r += 8) multiply_rows<8>(x + r, depth, panel, bias, n, out + r);
  for (; r + 2 <= rows; r += 2) multiply_rows<2>(x + r, depth, panel, bias, n, out + r);
  for (; r < rows; ++r) multiply_rows<1>(x + r, depth, panel, bias, n, out + r);
}

void add(float* x, const float* y, int n) {
  for_each_vector(n, [&](int i, int count) {
    store_up_to(x + i, load_up_to(x + i, count) + load_up_to(y + i, count), count);
  });
}

void layer_norm(const float* x, int n, const float* weight, const float* bias, float epsilon,
                float* out) {
  const Lanes zero = broadcast(0.0f);
  const auto value = [&](int i, int count) { return load_up_to(x + i, count); };
  const float mean = reduce_sum(reduce_row(n, add_lanes, zero, value)) / static_cast<float>(n);
  const auto square = [&](int i, int count) {
    const Lanes off = load_up_to(x + i, count, mean) - mean;
    return off * off;
  };
  const float variance = reduce_sum(reduce_row(n, add_lanes, zero, square)) / static_cast<float>(n);
  const float inverse = 1.0f / std::sqrt(variance + epsilon);
  for_each_vector(n, [&](int i, int count) {
    const Lanes unit = (load_up_to(x + i, count) - mean) * inverse;
    store_up_to(out + i, unit * load_up_to(weight + i, count) + load_up_to(bias + i, count), count);
  });
}

void rms_norm(const float* x, int n, const float* weight, float epsilon, float* out) {
  const auto square = [&](int i, int count) {
    const Lanes value = load_up_to(x + i, count);
    return value * value;
  };
  const float total = reduce_sum(reduce_row(n, add_lanes, broadcast(0.0f), square));
  const float inverse = 1.0f / std::sqrt(total / static_cast<float>(n) + epsilon);
  for_each_vector(n, [&](int i, int count) {
    const Lanes unit = load_up_to(x + i, count) * inverse;
    store_up_to(out + i, unit * load_up_to(weight + i, count), count);
  });
}

OUTRIDER_INLINE Lanes activation(Activation kind, Lanes x) {
  switch (kind) {
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanh_lanes(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::gelu:
      return 0.5f * x * (1.0f + erf_lanes(x * 0.70710678f));
    case Activation::silu:
      return x * sigmoid_lanes(x);
    default:
      return max_lanes(x, broadcast(0.0f));
  }
}

void activate(Activation kind, float* x, int n) {
  for_each_vector(n, [&](int i, int count) {
    store_up_to(x + i, activation(kind, load_up_to(x + i, count)), count);
  });
}

void gated_activation(Activation kind, float* x, const float* y, int n) {
  for_each_vector(n, [&](int i, int count) {
    store_up_to(x + i, activation(kind, load_up_to(x + i, count)) * load_up_to(y + i, count),
                count);
  });
}

void recur(const float* x, const float* gate, const float* before, int n, float* state,
           float* out) {
  for_each_vector(n, [&](int i, int count) {
    const Lanes forget = sigmoid_lanes(load_up_to(gate + i, count));
    Lanes next = (1.0f - forget) * load_up_to(x + i, count);
    if (before != nullptr) next = forget * load_up_to(before + i, count) + next;
    store_up_to(state + i, next, count);
    store_up_to(out + i, max_lanes(next, broadcast(0.0f)), count);
  });
}

// q . k for 16 keys at once, in four sums to hide the latency of additions.
OUTRIDER_INLINE Lanes dot_block(const float* query, const float* block, int width) {
  Lanes sum[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
  int k = 0;
  for (; k + 4 <= width; k += 4)
    for (int i = 0; i < 4; ++i) sum[i] = sum[i] + load(block + (k + i) * kLanes) * query[k + i];
  for (; k < width; ++k) sum[0] = sum[0] + load(block + k * kLanes) * query[k];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Writes the scores of all keys of a query, padded with -1e30, which softmax turns to 0.
OUTRIDER_INLINE void attention_scores(const AttentionQuery& query, int width, float scale,
                                      float* scores) {
  for (int j = 0; j < query.visible; j += kLanes) {
    const int count = query.visible - j < kLanes ? query.visible - j : kLanes;
    Lanes found = dot_block(query.q, query.keys + j * width, width) * scale;
    if (query.bias != nullptr) found = found + load_up_to(query.bias + j, count);
    store(scores + j, broadcast(-1e30f));
    store_up_to(scores + j, found, count);
  }
}

// Replaces scores by unnormalised softmax weights and returns 1 / sum.
OUTRIDER_INLINE float softmax_weights(float* scores, int count) {
  Lanes most = broadcast(-1e30f);
  for (int j = 0; j < count; j += kLanes) most = max_lanes(most, load(scores + j));
  const float peak = reduce_max(most);
  Lanes total = broadcast(0.0f);
  for (int j = 0; j < count; j += kLanes) {
    const Lanes weight = exp_lanes(load(scores + j) - peak);
    store(scores + j, weight);
    total = total + (count - j < kLanes ? load_partial(scores + j, count - j, 0.0f) : weight);
  }
  return 1.0f / reduce_sum(total);
}

OUTRIDER_INLINE void weighted_values(const AttentionQuery& query, int width, const float* weights,
                                     float inverse_sum) {
  int d = 0;
  for (; d + 4 * kLanes <= width; d += 4 * kLanes) {
    Lanes sum[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
    for (int j = 0; j < query.visible; ++j)
      for (int i = 0; i < 4; ++i)
        sum[i] = sum[i] + load(query.values + j * width + d + i * kLanes) * weights[j];
    for (int i = 0; i < 4; ++i) store(query.out + d + i * kLanes, sum[i] * inverse_sum);
  }
  for_each_vector(width - d, [&](int i, int lanes) {
    Lanes sum = broadcast(0.0f);
    for (int j = 0; j < query.visible; ++j)
      sum = sum + load_up_to(query.values + j * width + d + i, lanes) * weights[j];
    store_up_to(query.out + d + i, sum * inverse_sum, lanes);
  });
}

// Interleaves several queries, because the steps of a single query depend on each other.
void attend(const AttentionQuery* queries, int count, int width, float scale, float* scores) {
  for (int first = 0; first < count; first += kQueryBlock) {
    const int some = count - first < kQueryBlock ? count - first : kQueryBlock;
    int stride = 0;
    for (int n = 0; n < some; ++n)
      stride = queries[first + n].visible > stride ? queries[first + n].visible : stride;
    stride = (stride + kLanes - 1) / kLanes * kLanes;
    float inverse_sum[kQueryBlock];
    for (int n = 0; n < some; ++n)
      attention_scores(queries[first + n], width, scale, scores + n * stride);
    for (int n = 0; n < some; ++n)
      inverse_sum[n] = softmax_weights(scores + n * stride, queries[first + n].visible);
    for (int n = 0; n < some; ++n)
      weighted_values(queries[first + n], width, scores + n * stride, inverse_sum[n]);
  }
}

void apply_rotary(float* x, int width, const float* sines, const float* cosines) {
  const int half = width / 2;
  for (int k = 0; k < half; ++k) {
    const float left = x[k], right = x[half + k];
    x[k] = left * cosines[k] - right * sines[k];
    x[half + k] = left * sines[k] + right * cosines[k];
  }
}

void tanh_row(float* x, int n) {
  for_each_vector(n, [&](int i, int count) {
    store_up_to(x + i, tanh_lanes(load_up_to(x + i, count)), count);
  });
}

float dot(const float* x, const float* y, int n) {
  const auto product = [&](int i, int count) {
    return load_up_to(x + i, count) * load_up_to(y + i, count);
  };
  return reduce_sum(reduce_row(n, add_lanes, broadcast(0.0f), product));
}

void softmax(float* x, int n, float temperature) {
  Lanes most = broadcast(-1e30f);
  for_each_vector(
      n, [&](int i, int count) { most = max_lanes(most, load_up_to(x + i, count, -1e30f)); });
  const float peak = reduce_max(most), inverse_temperature = 1.0f / temperature;
  Lanes total = broadcast(0.0f);
  for_each_vector(n, [&](int i, int count) {
    store_up_to(x + i, exp_lanes((load_up_to(x + i, count) - peak) * inverse_temperature), count);
    total = total + load_up_to(x + i, count);
  });
  const float inverse = 1.0f / reduce_sum(total);
  for_each_vector(
      n, [&](int i, int count) { store_up_to(x + i, load_up_to(x + i, count) * inverse, count); });
}

OUTRIDER_INLINE float largest_of_64(const float* x) {
  const Lanes left = max_lanes(load(x), load(x + kLanes));
  return reduce_max(max_lanes(left, max_lanes(load(x + 2 * kLanes), load(x + 3 * kLanes))));
}

int argmax(const float* x, int n) {
  const auto value = [&](int i, int count) { return load_up_to(x + i, count, -3e38f); };
  const float wanted = reduce_max(reduce_row(n, max_lanes, broadcast(-3e38f), value));
  int i = 0;
  while (i + 4 * kLanes <= n && largest_of_64(x + i) != wanted) i += 4 * kLanes;
  for (; i < n; ++i)
    if (x[i] == wanted) return i;
  return 0;  // all are minus infinity or NaN
}

// Keeps the best in order. 64 numbers that are all below the worst of them cost one comparison.
void top_k(const float* x, int n, int count, int* indices, float* values) {
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
        indices[place] = indices[place - 1];
      }
      values[place] = x[i];
      indices[place] = i;
    }
  }
}

void subtract(float* x, float y, int n) {
  for_each_vector(
      n, [&](int i, int count) { store_up_to(x + i, load_up_to(x + i, count) - y, count); });
}

float largest(const float* x, int n) {
  const auto value = [&](int i, int count) { return load_up_to(x + i, count, -3e38f); };
  return reduce_max(reduce_row(n, max_lanes, broadcast(-3e38f), value));
}

float log_total(const float* x, int n) {
  const float most = largest(x, n);
  const auto value = [&](int i, int count) {
    const Lanes mass = exp_lanes(load_up_to(x + i, count, most) - most);
    return count == kLanes ? mass : mask_after(mass, count);
  };
  const float total = reduce_sum(reduce_row(n, add_lanes, broadcast(0.0f), value));
  return static_cast<float>(std::log(static_cast<double>(total))) + most;
}

void masses(const float* x, int n, double temperature, double* out) {
  const double most = largest(x, n);
  int i = 0;
  for (; i + kWideLanes <= n; i += kWideLanes) {
    store(out + i, exp_wide((load_wide(x + i) - most) / temperature));
  }
  if (i == n) return;
  float rest[kWideLanes];
  for (int k = 0; k < kWideLanes; ++k) rest[k] = x[i + k < n ? i + k : i];
  store_partial(out + i, exp_wide((load_wide(rest) - most) / temperature), n - i);
}

float bound_panel(const std::int32_t* dots, int groups, const float* factors,
                  const std::uint16_t* records, const float* bias) {
  Lanes bound = load(bias);
  for (int g = 0; g < groups; ++g, factors += 3, records += 2 * kPanel) {
    const Lanes dot = to_floats(load_as<IntLanes>(dots + g * kPanel));
    const Lanes known = load_bfloat16(records) * (dot * factors[0] + factors[1]);
    bound = bound + (known + load_bfloat16(records + kPanel) * factors[2]);
  }
  return reduce_max(bound);
}

}  // namespace

extern const RowFunctions OUTRIDER_FAMILY;
const RowFunctions OUTRIDER_FAMILY = {
    quantise,         dequantise, multiply_panel, add,         layer_norm, rms_norm, activate,
    gated_activation, attend,     apply_rotary,   recur,       tanh_row,   dot,      softmax,
    argmax,           top_k,      subtract,       bound_panel, log_total,  masses,
};

}  // namespace outrider
