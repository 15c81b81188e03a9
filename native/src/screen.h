// Screening of a large head in four bits: an upper bound for the score of every token.
//
// Most of the time of a step of a model with a large vocabulary is its head, and few tokens can
// have the largest score. With w and x as in the exact product, an orthonormal R, u = R w and y = R
// x:
//
//     w x = u y  <=  sum over groups g of  U_g Y_g + |U_g| |y_g - Y_g| + |u_g - U_g| |y_g|
//
// where U is u in four bits, and Y is y in eight, with a scale for every 64 places. The rows of R
// are the principal directions of the head, along which a decoder's states are small, so that u is
// large where y is small. Tokens whose bound is below a known score need no exact product. For
// OPUS-MT these are 98 of 100, so half of the bytes are read.
//
// |y_g - Y_g| is rarely above 0.006 |y_g|: this share of |U_g| is included in the rest |u_g - U_g|
// of each token, and any excess is added to all. The rounding of R, u and y in float32 is less than
// `slack` of |w| |x|, which is added as well.
#pragma once

#include "matrix.h"

#include <cstdint>
#include <string>

namespace outrider {

constexpr int kMaxScreenedRows = 4;  // with more rows the exact head is not slower

// Buffers of one worker.
struct ScreenBuffers {
  Buffer<std::int8_t> bytes;     // [row][depth]: rows, then rotated rows
  Buffer<float> exact, rotated;  // [row][depth]
  Buffer<float> factors;         // [row][group][3]
  Buffer<std::int32_t> dots;
  Buffer<float> bounds;  // [row][panel]: the largest of a panel's tokens
  Operand operand;
};

class Screen {
 public:
  Screen() = default;
  // Of the int8 weight NAME.weight, [columns][width], with NAME.rotation.weight, [width][width].
  Screen(PackedWeights& weights, const Kernel& kernel, const std::string& name, int columns,
         int width, bool bias);
  // Whether the weights include a rotation.
  static bool available(const PackedWeights& weights, const std::string& name);

  bool empty() const { return columns_ == 0; }
  // Reserves the buffers, so that `bound` allocates nothing.
  void reserve(ScreenBuffers& buffers, int rows) const;
  // Bounds the scores of some panels for rows that are `stride` apart.
  void bound(const Kernel& kernel, ScreenBuffers& buffers, const float* x, int rows, int stride,
             Range panels) const;

 private:
  void pack(const Kernel& kernel, const Array& weight, const Array* bias, std::int8_t* out) const;
  void rotate(const Kernel& kernel, ScreenBuffers& buffers, const float* x, int rows,
              int stride) const;
  int panels() const { return (columns_ + kPanel - 1) / kPanel; }

  int columns_ = 0, width_ = 0, depth_ = 0;
  Matrix rotation_;
  const std::uint8_t* nibbles_ = nullptr;   // [panel][group][8][16][4]
  const std::uint16_t* records_ = nullptr;  // [panel][group][2][16]: scales and rests, bfloat16
  const float* bias_ = nullptr;             // of each column
  float largest_ = 0.0f;                    // of all |U_g|, in units of their scales
};

}  // namespace outrider
