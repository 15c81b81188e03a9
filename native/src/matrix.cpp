#include "matrix.h"

#include "kernel/lanes.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace outrider {
namespace {

constexpr int kRowBlock = 32;  // rows whose sums are in memory at once: two AMX tiles
constexpr int kSums = 6144;    // sums in memory at once: 24 KiB, which fit into the L1 cache
constexpr int kPanelStep =
    12;  // the number of panels at once is a multiple of this, for all products

// Rounds x / scale to integers, ties to even. `x` and `bytes` are padded to `kLanes`.
void round_column(const float* x, int width, float scale, std::int8_t* bytes) {
  const Lanes divisor = broadcast(scale), limit = broadcast(127.0f);
  for (int k = 0; k < width; k += kLanes) {
    const Lanes scaled = max_lanes(min_lanes(load(x + k) / divisor, limit), -limit);
    store_bytes(bytes + k, to_ints(round_lanes(scaled)), kLanes);
  }
}

// The parts of an int8 weight, stored one after another.
struct Columns {
  std::int8_t* bytes;
  float* scales;
  std::int32_t* offsets;
};

// Converts one column at a time, so that the whole weight is never in float32.
void pack_columns(const Array& weight, const Columns& out) {
  const auto depth = static_cast<std::size_t>(round_up(weight.shape[1], kDepthStep));
  std::vector<float> column(depth, 0.0f);
  std::vector<std::int8_t> bytes(depth, 0);
  for (std::size_t c = 0; c < static_cast<std::size_t>(weight.shape[0]); ++c) {
    const float scale = read_column(weight, c, column.data(), bytes.data());
    std::int8_t* panel = out.bytes + c / kPanel * depth * kPanel + c % kPanel * 4;
    for (std::size_t k = 0; k < depth; k += 4) std::memcpy(panel + k * kPanel, bytes.data() + k, 4);
    out.scales[c] = scale;
    out.offsets[c] = 128 * std::accumulate(bytes.begin(), bytes.end(), 0);
  }
}

void pack_floats(const Array& weight, float* out) {
  const auto width = static_cast<std::size_t>(weight.shape[1]);
  std::vector<float> column(width);
  for (std::size_t c = 0; c < static_cast<std::size_t>(weight.shape[0]); ++c) {
    weight.read(c * width, width, column.data());
    float* panel = out + c / kPanel * width * kPanel + c % kPanel;
    for (std::size_t k = 0; k < width; ++k) panel[k * kPanel] = column[k];
  }
}

}  // namespace

float read_column(const Array& weight, std::size_t number, float* column, std::int8_t* bytes) {
  if (weight.type == NumberType::int8) return weight.read_bytes(number, bytes);
  const auto width = static_cast<std::size_t>(weight.shape[1]);
  const float step = weight.read(number * width, width, column) / 127.0f;
  const float scale = step > 0.0f ? step : 1.0f;
  round_column(column, weight.shape[1], scale, bytes);
  return scale;
}

void Operand::reserve(Precision precision, int rows, int width) {
  const auto count = static_cast<std::size_t>(rows);
  if (precision == Precision::float32) {
    pointers_.reserve(count);
    outputs_.reserve(count);
    return;
  }
  bytes_.reserve(count * static_cast<std::size_t>(round_up(width, kDepthStep)));
  scales_.reserve(count);
  sums_.reserve(std::max(kSums, kRowBlock * kPanelStep * kPanel));
}

void Operand::load(const Kernel& kernel, Precision precision, const float* x, int rows, int width,
                   int stride) {
  rows_ = rows;
  if (precision == Precision::float32) {
    pointers_.resize(static_cast<std::size_t>(rows));
    for (int r = 0; r < rows; ++r)
      pointers_[static_cast<std::size_t>(r)] = x + static_cast<std::ptrdiff_t>(r) * stride;
    return;
  }
  depth_ = round_up(width, kDepthStep);
  for (int r = 0; r < rows; ++r)
    scales_[static_cast<std::size_t>(r)] =
        kernel.rows->quantise(x + static_cast<std::ptrdiff_t>(r) * stride, width,
                              bytes_.data() + static_cast<std::ptrdiff_t>(r) * depth_, depth_);
  if (!kernel.unsigned_bytes) return;
  std::int8_t* const bytes = bytes_.data();  // a local pointer, so that the loop is vectorised
  const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(rows) * depth_;
  for (std::ptrdiff_t n = 0; n < count; ++n) bytes[n] = static_cast<std::int8_t>(bytes[n] ^ -128);
}

Matrix::Matrix(PackedWeights& weights, const std::string& name, int columns, int width,
               Precision precision, bool bias)
    : precision_(precision), columns_(columns), width_(width), depth_(round_up(width, kDepthStep)) {
  const auto padded = static_cast<std::size_t>(round_up(columns, kPanel));
  const std::string weight = name + ".weight";
  if (precision == Precision::int8) {
    const std::size_t bytes = padded * static_cast<std::size_t>(depth_);
    const auto packed = weights.get<std::int8_t>(
        weight + ".int8", bytes + padded * (sizeof(float) + sizeof(std::int32_t)),
        [&](const Weights& arrays, std::int8_t* out) {
          pack_columns(arrays.get(weight, {columns, width}),
                       {out, reinterpret_cast<float*>(out + bytes),
                        reinterpret_cast<std::int32_t*>(out + bytes + padded * sizeof(float))});
        });
    packed_ = packed.data();
    scales_ = reinterpret_cast<const float*>(packed_ + bytes);
    offsets_ = reinterpret_cast<const std::int32_t*>(scales_ + padded);
  } else {
    floats_ = weights
                  .get<float>(weight + ".float32", padded * static_cast<std::size_t>(width),
                              [&](const Weights& arrays, float* out) {
                                pack_floats(arrays.get(weight, {columns, width}), out);
                              })
                  .data();
  }
  set_bias(weights, name + ".bias", bias);
}

Matrix Matrix::with_bias(PackedWeights& weights, const std::string& name) const {
  Matrix other = *this;
  other.set_bias(weights, name, true);
  return other;
}

Matrix Matrix::gather(std::span<const int> columns, Buffer<unsigned char>& out) const {
  const auto padded = static_cast<std::size_t>(round_up(static_cast<int>(columns.size()), kPanel));
  const bool int8 = precision_ == Precision::int8;
  const auto depth = static_cast<std::size_t>(int8 ? depth_ / 4 : width_);  // pieces of 4 bytes
  const std::size_t whole = padded * depth * 4, numbers = padded * sizeof(float);
  out = Buffer<unsigned char>(whole + 3 * numbers);
  std::memset(out.data(), 0, out.size());
  auto* scales = reinterpret_cast<float*>(out.data() + whole);
  float* bias = scales + padded;
  auto* offsets = reinterpret_cast<std::int32_t*>(bias + padded);
  const auto* from = int8 ? reinterpret_cast<const unsigned char*>(packed_)
                          : reinterpret_cast<const unsigned char*>(floats_);
  // The offset of piece 0 of a column; the next piece is one panel width further.
  const auto start = [&](std::size_t column) {
    return (column / kPanel * depth * kPanel + column % kPanel) * 4;
  };
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const auto column = static_cast<std::size_t>(columns[c]);
    for (std::size_t k = 0; k < depth; ++k)
      std::memcpy(out.data() + start(c) + k * kPanel * 4, from + start(column) + k * kPanel * 4, 4);
    bias[c] = bias_[column];
    if (!int8) continue;
    scales[c] = scales_[column];
    offsets[c] = offsets_[column];
  }
  Matrix some = *this;
  some.columns_ = static_cast<int>(columns.size());
  some.bias_ = bias;
  if (int8) {
    some.packed_ = reinterpret_cast<const std::int8_t*>(out.data());
    some.scales_ = scales;
    some.offsets_ = offsets;
  } else {
    some.floats_ = reinterpret_cast<const float*>(out.data());
  }
  return some;
}

void Matrix::set_bias(PackedWeights& weights, const std::string& name, bool read) {
  const auto size = static_cast<std::size_t>(round_up(columns_, kPanel));
  const auto fill = [&](const Weights& arrays, float* out) {
    if (read) arrays.get(name, {columns_}).read(0, static_cast<std::size_t>(columns_), out);
  };
  bias_ = weights.get<float>(name, size, fill).data();
}

void Matrix::multiply(const Kernel& kernel, Operand& x, Range panels, float* out,
                      std::ptrdiff_t stride, const int* out_rows) const {
  if (precision_ == Precision::int8)
    multiply_bytes(kernel, x, panels, out, stride, out_rows);
  else
    multiply_floats(kernel, x, panels, out, stride, out_rows);
}

void Matrix::multiply_bytes(const Kernel& kernel, Operand& x, Range panels, float* out,
                            std::ptrdiff_t stride, const int* out_rows) const {
  const int block = std::min(x.rows_, kRowBlock);
  if (block == 0) return;
  const int step = std::max(1, kSums / (block * kPanel * kPanelStep)) * kPanelStep;
  std::int32_t* sums = x.sums_.data();
  for (int p = panels.begin; p < panels.end; p += step) {
    const int count = std::min(step, panels.end - p);
    const int column = p * kPanel, columns = std::min(count * kPanel, columns_ - column);
    const std::int8_t* weights = packed_ + static_cast<std::ptrdiff_t>(p) * depth_ * kPanel;
    for (int first = 0; first < x.rows_; first += block) {
      const int rows = std::min(block, x.rows_ - first);
      kernel.product(x.bytes_.data() + static_cast<std::ptrdiff_t>(first) * depth_, rows, depth_,
                     weights, offsets_ + column, count, sums);
      for (int r = 0; r < rows; ++r) {
        const int out_row = out_rows == nullptr ? first + r : out_rows[first + r];
        kernel.rows->dequantise(sums + r * count * kPanel, columns,
                                x.scales_[static_cast<std::size_t>(first + r)], scales_ + column,
                                bias_ + column,
                                out + out_row * stride + column - panels.begin * kPanel);
      }
    }
  }
}

void Matrix::multiply_floats(const Kernel& kernel, Operand& x, Range panels, float* out,
                             std::ptrdiff_t stride, const int* out_rows) const {
  x.outputs_.resize(static_cast<std::size_t>(x.rows_));
  for (int p = panels.begin; p < panels.end; ++p) {
    const int column = p * kPanel, columns = std::min(kPanel, columns_ - column);
    for (int r = 0; r < x.rows_; ++r)
      x.outputs_[static_cast<std::size_t>(r)] =
          out + (out_rows == nullptr ? r : out_rows[r]) * stride + column - panels.begin * kPanel;
    kernel.rows->multiply_panel(x.pointers_.data(), x.rows_, width_,
                                floats_ + static_cast<std::ptrdiff_t>(p) * width_ * kPanel,
                                bias_ + column, columns, x.outputs_.data());
  }
}

}  // namespace outrider
