#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace outrider {
namespace {

constexpr int kRowBlock = 32;  // rows whose sums are held at once: two AMX tiles
constexpr int kSums = 8192;    // sums held at once; 32 KiB, which the first cache keeps

float column_scale(const float* column, int width) {
  float most = 0.0f;
  for (int k = 0; k < width; ++k) most = std::max(most, std::fabs(column[k]));
  return most > 0.0f ? most / 127.0f : 1.0f;
}

}  // namespace

void Operand::reserve(Precision precision, int rows, int width) {
  const auto count = static_cast<std::size_t>(rows);
  if (precision == Precision::float32) {
    pointers_.reserve(count);
    outputs_.reserve(count);
    return;
  }
  bytes_.reserve(count * static_cast<std::size_t>(round_up(width, kDepthStep)));
  scales_.reserve(count);
  sums_.reserve(std::max(kSums, kRowBlock * 4 * kPanel));
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
}

Matrix::Matrix(const float* weight, const float* bias, int columns, int width, Precision precision)
    : precision_(precision), columns_(columns), width_(width), depth_(round_up(width, kDepthStep)) {
  const int padded = round_up(columns, kPanel);
  bias_ = Buffer<float>(static_cast<std::size_t>(padded));
  std::fill_n(bias_.data(), padded, 0.0f);
  if (bias != nullptr) std::copy_n(bias, columns, bias_.data());
  if (precision == Precision::float32) {
    floats_ = Buffer<float>(static_cast<std::size_t>(padded) * static_cast<std::size_t>(width));
    std::fill_n(floats_.data(), floats_.size(), 0.0f);
    for (int c = 0; c < columns; ++c)
      for (int k = 0; k < width; ++k) {
        const std::ptrdiff_t panel = static_cast<std::ptrdiff_t>(c / kPanel) * width;
        floats_[static_cast<std::size_t>((panel + k) * kPanel + c % kPanel)] =
            weight[static_cast<std::ptrdiff_t>(c) * width + k];
      }
    return;
  }
  packed_ =
      Buffer<std::int8_t>(static_cast<std::size_t>(padded) * static_cast<std::size_t>(depth_));
  std::memset(packed_.data(), 0, packed_.size());
  scales_ = Buffer<float>(static_cast<std::size_t>(padded));
  offsets_ = Buffer<std::int32_t>(static_cast<std::size_t>(padded));
  std::fill_n(scales_.data(), padded, 0.0f);
  std::fill_n(offsets_.data(), padded, 0);
  for (int c = 0; c < columns; ++c) {
    const float* column = weight + static_cast<std::ptrdiff_t>(c) * width;
    const float scale = column_scale(column, width);
    std::int32_t sum = 0;
    std::int8_t* panel = packed_.data() + static_cast<std::ptrdiff_t>(c / kPanel) * depth_ * kPanel;
    for (int k = 0; k < width; ++k) {
      const auto byte =
          static_cast<std::int8_t>(std::clamp(std::nearbyint(column[k] / scale), -127.0f, 127.0f));
      panel[(k / 4 * kPanel + c % kPanel) * 4 + k % 4] = byte;
      sum += byte;
    }
    scales_[static_cast<std::size_t>(c)] = scale;
    offsets_[static_cast<std::size_t>(c)] = 128 * sum;
  }
}

Matrix::Matrix(const Weights& weights, const std::string& name, int columns, int width,
               Precision precision, bool bias)
    : Matrix(weights.get(name + ".weight", {columns, width}),
             bias ? weights.get(name + ".bias", {columns}) : nullptr, columns, width, precision) {}

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
  const int step = std::max(4, kSums / (block * kPanel) / 4 * 4);
  std::int32_t* sums = x.sums_.data();
  for (int p = panels.begin; p < panels.end; p += step) {
    const int count = std::min(step, panels.end - p);
    const int column = p * kPanel, columns = std::min(count * kPanel, columns_ - column);
    const std::int8_t* weights = packed_.data() + static_cast<std::ptrdiff_t>(p) * depth_ * kPanel;
    for (int first = 0; first < x.rows_; first += block) {
      const int rows = std::min(block, x.rows_ - first);
      kernel.product(x.bytes_.data() + static_cast<std::ptrdiff_t>(first) * depth_, rows, depth_,
                     weights, offsets_.data() + column, count, sums);
      for (int r = 0; r < rows; ++r) {
        const int out_row = out_rows == nullptr ? first + r : out_rows[first + r];
        kernel.rows->dequantise(sums + r * count * kPanel, columns,
                                x.scales_[static_cast<std::size_t>(first + r)],
                                scales_.data() + column, bias_.data() + column,
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
                                floats_.data() + static_cast<std::ptrdiff_t>(p) * width_ * kPanel,
                                bias_.data() + column, columns, x.outputs_.data());
  }
}

std::size_t Matrix::bytes() const {
  return packed_.size() + 4 * (offsets_.size() + floats_.size() + scales_.size() + bias_.size());
}

}  // namespace outrider
