// A large head, read in four bits first: which words could be the likeliest?
//
// Most of a step of a model with many words is its head, and all but a few of the words are far
// from being said. Their scores are bounded by what four bits of each weight tell. With w and x as
// the exact product has them, an orthonormal R, u = R w and y = R x:
//
//     w x = u y  <=  sum over groups g of  U_g Y_g + |U_g| |y_g - Y_g| + |u_g - U_g| |y_g|
//
// where U is u in four bits, and Y is y in eight, with a scale for every 64 places. R turns both so
// that u is large where y is small: its rows are the main directions of the head's own weights,
// from which a decoder's states keep away. Words whose bound lies below a score that is already
// known need no exact product. For OPUS-MT these are 98 of 100, so that half of the bytes are read.
//
// |y_g - Y_g| is seldom more than 0.006 |y_g|: so much of |U_g| is added to the rest of each word,
// and what is more to all. What is rounded on the way (R, u and y in float32) is less than `slack`
// of |w| |x|, and added too.
#pragma once

#include "matrix.h"

#include <cstdint>
#include <string>

namespace outrider {

// What one worker needs to screen some rows.
struct ScreenBuffers {
  Buffer<std::int8_t> bytes;   // [row][depth]: rows, and then what they are when turned
  Buffer<float> whole, turned; // [row][depth]
  Buffer<float> factors;       // [row][group][3]
  Buffer<std::int32_t> dots;
  Buffer<float> bounds;        // [row][panel]: of the words of a panel the largest
  Operand operand;
};

class Screen {
 public:
  Screen() = default;
  // Of the int8 weight NAME.weight, [columns][width], with NAME.rotation.weight, [width][width].
  Screen(PackedWeights& weights, const Kernel& kernel, const std::string& name, int columns,
         int width, bool bias);
  // Whether `weights` have what it takes.
  static bool is_there(const PackedWeights& weights, const std::string& name);

  bool empty() const { return columns_ == 0; }
  // Makes room, so that nothing after this can fail.
  void reserve(ScreenBuffers& buffers, int rows) const;
  // Bounds the columns of some panels for rows that are `stride` apart.
  void bound(const Kernel& kernel, ScreenBuffers& buffers, const float* x, int rows, int stride,
             Range panels) const;

 private:
  void pack(const Kernel& kernel, const Array& weight, const Array* bias, std::int8_t* out) const;
  void turn(const Kernel& kernel, ScreenBuffers& buffers, const float* x, int rows,
            int stride) const;
  int panels() const { return (columns_ + kPanel - 1) / kPanel; }

  int columns_ = 0, width_ = 0, depth_ = 0;
  Matrix rotation_;
  const std::uint8_t* nibbles_ = nullptr;    // [panel][group][8][16][4]
  const std::uint16_t* records_ = nullptr;   // [panel][group][2][16]: scales and rests, bfloat16
  const float* bias_ = nullptr;              // of each column
  float largest_ = 0.0f;                     // of all |U_g|, in units of their scales
};

}  // namespace outrider
