// The packed weight of a linear layer, and products with it. The numbers belong to a
// `PackedWeights`.
//
//     y = W x + b      int8:  W_ij ~ w_ij s_i,  x_j ~ q_j t   =>   y_i = t s_i sum_j w_ij q_j + b_i
//
// Each output column has its own scale, and so has each row of the input (one token). The results
// of a token therefore do not depend on the other tokens of the batch.
#pragma once

#include "kernel/kernel.h"
#include "memory.h"
#include "packed_weights.h"

#include <span>
#include <string>
#include <vector>

namespace outrider {

enum class Precision { float32, int8 };

struct Range {
  int begin = 0, end = 0;
};

// Quantises a column of a weight [columns][width] and returns its scale. `column` is scratch; both
// outputs are zero-padded to a multiple of 16.
float read_column(const Array& weight, std::size_t number, float* column, std::int8_t* bytes);

// The rows of a product: bytes and their scales, or pointers to floats.
class Operand {
 public:
  // Reserves memory for `rows` rows of `width` numbers, so that `load` allocates nothing.
  void reserve(Precision precision, int rows, int width);
  // Loads `rows` rows of `width` numbers each, `stride` apart.
  void load(const Kernel& kernel, Precision precision, const float* x, int rows, int width,
            int stride);

 private:
  friend class Matrix;
  int rows_ = 0;
  int depth_ = 0;
  Buffer<std::int8_t> bytes_;
  Buffer<float> scales_;
  std::vector<const float*> pointers_;
  Buffer<std::int32_t> sums_;
  std::vector<float*> outputs_;
};

class Matrix {
 public:
  Matrix() = default;
  // NAME.weight is [columns][width]; without a bias NAME.bias is not read.
  Matrix(PackedWeights& weights, const std::string& name, int columns, int width,
         Precision precision, bool bias = true);
  // The same weight with another bias.
  Matrix with_bias(PackedWeights& weights, const std::string& name) const;

  // Copies some of the columns to `out`.
  Matrix gather(std::span<const int> columns, Buffer<unsigned char>& out) const;

  int columns() const { return columns_; }
  int panels() const { return (columns_ + kPanel - 1) / kPanel; }

  // Computes the columns of some panels for all rows of `x`. Row r is written to
  // out + out_rows[r] * stride, or out + r * stride if `out_rows` is null.
  void multiply(const Kernel& kernel, Operand& x, Range panels, float* out, std::ptrdiff_t stride,
                const int* out_rows = nullptr) const;

 private:
  void set_bias(PackedWeights& weights, const std::string& name, bool read);
  void multiply_bytes(const Kernel& kernel, Operand& x, Range panels, float* out,
                      std::ptrdiff_t stride, const int* out_rows) const;
  void multiply_floats(const Kernel& kernel, Operand& x, Range panels, float* out,
                       std::ptrdiff_t stride, const int* out_rows) const;

  Precision precision_ = Precision::float32;
  int columns_ = 0, width_ = 0, depth_ = 0;
  const std::int8_t* packed_ = nullptr;
  const std::int32_t* offsets_ = nullptr;
  const float *floats_ = nullptr, *scales_ = nullptr, *bias_ = nullptr;
};

}  // namespace outrider
