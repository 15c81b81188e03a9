#include "screen.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace outrider {
namespace {

constexpr int kPanelsAtOnce = 4;    // whose dots fit into the L1 cache
constexpr int kLevels = 8;          // nibbles from -8 to 7
constexpr float kRowRest = 0.006f;  // |y_g - Y_g| / |y_g| that rests include

// The upper half of the smallest bfloat16 that is not below x, which is not negative.
std::uint16_t upper_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0xffffu) >> 16);
}

float widened(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

// Bound of the rounding errors, relative to |w| |x|. Each of the `width` rotated numbers is a sum
// of `width` products with a row of length 1, with an error of 2^-24 of the sum of magnitudes for
// each sequential addition. This applies to w and to x. The errors of R's orthonormality, of bounds
// and of exact scores are far smaller.
float slack(int width) {
  const auto sums = static_cast<float>(kSummedApart + round_up(width, kSummedApart) / kSummedApart);
  return 1e-5f + 2.0f * sums * std::sqrt(static_cast<float>(width)) * 0x1p-24f;
}

float length(const float* x, int n) {
  double sum = 0.0;
  for (int k = 0; k < n; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  return static_cast<float>(std::sqrt(sum)) * 1.00001f;
}

float level_of(float x, float scale) {
  const float whole = (x / scale + 12582912.0f) - 12582912.0f;  // to the nearest, as in lanes.h
  return std::min(std::max(whole, -static_cast<float>(kLevels)), kLevels - 1.0f);
}

// The scale, of a few, with the smallest error of four bits; large numbers can be clipped.
float best_scale(const float* u) {
  float top = 0.0f;
  for (int k = 0; k < kGroup; ++k) top = std::max(top, std::abs(u[k]));
  if (!(top > std::numeric_limits<float>::min())) return 0.0f;
  float best = 0.0f, least = std::numeric_limits<float>::max();
  for (const float share : {1.0f, 0.9f, 0.8f, 0.7f, 0.6f}) {
    const float scale = widened(upper_half(share * top / (kLevels - 0.5f)));
    float lost = 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const float rest = u[k] - level_of(u[k], scale) * scale;
      lost += rest * rest;
    }
    if (lost < least) best = scale;
    least = std::min(least, lost);
  }
  return best;
}

// One group of one column: its nibbles, and the scale and rest of its record. Returns |U| / scale.
float round_group(const float* u, float lost, std::uint8_t* nibbles, std::uint16_t* record) {
  const float scale = best_scale(u);
  float rest[kGroup], levels[kGroup];
  for (int k = 0; k < kGroup; ++k) {
    levels[k] = scale > 0.0f ? level_of(u[k], scale) : 0.0f;
    rest[k] = u[k] - levels[k] * scale;
    const auto nibble = static_cast<unsigned>(static_cast<int>(levels[k]) + kLevels);
    nibbles[k / 8 * 4 * kPanel + k % 4] |=
        static_cast<std::uint8_t>(k % 8 < 4 ? nibble : nibble << 4);
  }
  const float size = length(levels, kGroup);
  record[0] = upper_half(scale);
  record[kPanel] = upper_half(length(rest, kGroup) + kRowRest * size * scale + lost);
  return size;
}

}  // namespace

bool Screen::available(const PackedWeights& weights, const std::string& name) {
  const std::string rotation = name + ".rotation.weight";
  return weights.has(rotation) || weights.has(rotation + ".float32");
}

Screen::Screen(PackedWeights& weights, const Kernel& kernel, const std::string& name, int columns,
               int width, bool bias)
    : columns_(columns),
      width_(width),
      depth_(round_up(width, kDepthStep)),
      rotation_(weights, name + ".rotation", width, width, Precision::float32, false) {
  const auto padded = static_cast<std::size_t>(panels()) * kPanel;
  const auto groups = static_cast<std::size_t>(depth_ / kGroup);
  const std::size_t nibbles = padded * groups * kGroup / 2;
  const std::size_t records = padded * groups * 2 * sizeof(std::uint16_t);
  const auto packed = weights.get<std::int8_t>(
      name + ".screen", nibbles + records + (padded + kPanel) * sizeof(float),
      [&](const Weights& arrays, std::int8_t* out) {
        const Array* added = bias ? &arrays.get(name + ".bias", {columns}) : nullptr;
        pack(kernel, arrays.get(name + ".weight", {columns, width}), added, out);
      });
  nibbles_ = reinterpret_cast<const std::uint8_t*>(packed.data());
  records_ = reinterpret_cast<const std::uint16_t*>(packed.data() + nibbles);
  bias_ = reinterpret_cast<const float*>(packed.data() + nibbles + records);
  largest_ = bias_[padded];
}

void Screen::pack(const Kernel& kernel, const Array& weight, const Array* bias,
                  std::int8_t* out) const {
  const int groups = depth_ / kGroup;
  const auto padded = static_cast<std::size_t>(panels()) * kPanel;
  auto* nibbles = reinterpret_cast<std::uint8_t*>(out);
  const auto depth = static_cast<std::size_t>(depth_);
  auto* records = reinterpret_cast<std::uint16_t*>(out + padded * depth / 2);
  auto* added = reinterpret_cast<float*>(records + padded * static_cast<std::size_t>(groups) * 2);
  std::vector<float> columns(kPanel * depth), rotated(kPanel * depth);
  std::vector<std::int8_t> bytes(depth);
  Operand operand;
  operand.reserve(Precision::float32, kPanel, width_);
  float largest = 0.0f;
  for (int p = 0; p < panels(); ++p) {
    const int count = std::min(kPanel, columns_ - p * kPanel);
    for (int c = 0; c < count; ++c) {
      float* column = columns.data() + static_cast<std::ptrdiff_t>(c) * depth_;
      const auto number = static_cast<std::size_t>(p * kPanel + c);
      const float scale = read_column(weight, number, column, bytes.data());
      for (int k = 0; k < width_; ++k) column[k] = scale * static_cast<float>(bytes[k]);
    }
    operand.load(kernel, Precision::float32, columns.data(), count, width_, depth_);
    rotation_.multiply(kernel, operand, {0, rotation_.panels()}, rotated.data(), depth_);
    for (int c = 0; c < count; ++c) {
      const float* column = columns.data() + static_cast<std::ptrdiff_t>(c) * depth_;
      const float* u = rotated.data() + static_cast<std::ptrdiff_t>(c) * depth_;
      const float lost = slack(width_) * length(column, width_);
      if (!std::isfinite(lost))
        throw std::invalid_argument("the weights of a token are not finite");
      for (int g = 0; g < groups; ++g) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(p) * groups + g;
        largest =
            std::max(largest, round_group(u + g * kGroup, lost, nibbles + at * kGroupBytes + c * 4,
                                          records + at * 2 * kPanel + c));
      }
    }
  }
  if (bias != nullptr) bias->read(0, static_cast<std::size_t>(columns_), added);
  const float rounding = static_cast<float>(groups + 2) * 0x1p-23f;
  for (int c = 0; c < columns_; ++c)
    added[c] += std::abs(added[c]) * rounding + std::numeric_limits<float>::min();
  std::fill(added + columns_, added + padded, std::numeric_limits<float>::lowest());
  added[padded] = largest;
}

void Screen::reserve(ScreenBuffers& buffers, int rows) const {
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t groups = static_cast<std::size_t>(depth_ / kGroup);
  buffers.bytes.reserve(count * groups * kGroup);
  buffers.exact.reserve(count * groups * kGroup);
  buffers.rotated.reserve(count * groups * kGroup);
  buffers.factors.reserve(count * groups * 3);
  buffers.dots.reserve(count * kPanelsAtOnce * groups * kPanel);
  buffers.bounds.reserve(count * static_cast<std::size_t>(panels()));
  buffers.operand.reserve(Precision::float32, rows, width_);
}

void Screen::rotate(const Kernel& kernel, ScreenBuffers& buffers, const float* x, int rows,
                    int stride) const {
  const int groups = depth_ / kGroup;
  for (int r = 0; r < rows; ++r) {
    std::int8_t* bytes = buffers.bytes.data() + static_cast<std::ptrdiff_t>(r) * depth_;
    float* whole = buffers.exact.data() + static_cast<std::ptrdiff_t>(r) * depth_;
    const float scale =
        kernel.rows->quantise(x + static_cast<std::ptrdiff_t>(r) * stride, width_, bytes, depth_);
    for (int k = 0; k < width_; ++k) whole[k] = scale * static_cast<float>(bytes[k]);
  }
  buffers.operand.load(kernel, Precision::float32, buffers.exact.data(), rows, width_, depth_);
  std::fill_n(buffers.rotated.data(), static_cast<std::ptrdiff_t>(rows) * depth_, 0.0f);
  rotation_.multiply(kernel, buffers.operand, {0, rotation_.panels()}, buffers.rotated.data(),
                     depth_);
  for (int at = 0; at < rows * groups; ++at) {
    const float* y = buffers.rotated.data() + static_cast<std::ptrdiff_t>(at) * kGroup;
    std::int8_t* bytes = buffers.bytes.data() + static_cast<std::ptrdiff_t>(at) * kGroup;
    const float step = kernel.rows->quantise(y, kGroup, bytes, kGroup);
    float rest[kGroup];
    int sum = 0;
    for (int k = 0; k < kGroup; ++k) {
      rest[k] = y[k] - step * static_cast<float>(bytes[k]);
      sum += bytes[k];
    }
    float* factors = buffers.factors.data() + static_cast<std::ptrdiff_t>(at) * 3;
    factors[0] = step;
    factors[2] = length(y, kGroup);
    const float more = std::max(0.0f, length(rest, kGroup) - kRowRest * factors[2]);
    factors[1] = largest_ * more - step * static_cast<float>(kLevels * sum);
  }
}

void Screen::bound(const Kernel& kernel, ScreenBuffers& buffers, const float* x, int rows,
                   int stride, Range panels) const {
  const int groups = depth_ / kGroup, count = panels.end - panels.begin;
  rotate(kernel, buffers, x, rows, stride);
  for (int p = panels.begin; p < panels.end; p += kPanelsAtOnce) {
    const int some = std::min(kPanelsAtOnce, panels.end - p);
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(p) * groups;
    kernel.nibbles(buffers.bytes.data(), rows, groups, nibbles_ + at * kGroupBytes, some,
                   buffers.dots.data());
    const std::int32_t* dots = buffers.dots.data();
    for (int r = 0; r < rows; ++r) {
      float* out =
          buffers.bounds.data() + static_cast<std::ptrdiff_t>(r) * count + p - panels.begin;
      const float* factors = buffers.factors.data() + static_cast<std::ptrdiff_t>(r) * groups * 3;
      for (int i = 0; i < some; ++i, dots += groups * kPanel)
        out[i] = kernel.rows->bound_panel(dots, groups, factors,
                                          records_ + (at + i * groups) * 2 * kPanel,
                                          bias_ + (p + i) * kPanel);
    }
  }
}

}  // namespace outrider
