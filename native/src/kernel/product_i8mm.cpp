// The int8 product with ARM's matrix instructions: `smmla` multiplies two rows of eight bytes with
// two columns of eight.
//
// Packed weights store four inner places of a column together. Two such groups, zipped, are the
// eight bytes of an operand.
#include "kernel.h"

#include <arm_neon.h>

namespace outrider {

Product product_neon;

namespace {

// Two rows, eight inner places.
inline int8x16_t two_rows(const std::int8_t* upper, const std::int8_t* lower) {
  return vcombine_s8(vld1_s8(upper), vld1_s8(lower));
}

// kPairs pairs of rows and a panel.
template <int kPairs>
inline void multiply_pairs(const std::int8_t* bytes, int depth, const std::int8_t* panel,
                           int stride, std::int32_t* sums) {
  int32x4_t sum[kPairs][8];  // of two columns each: [row][column]
  for (int n = 0; n < kPairs; ++n)
    for (int c = 0; c < 8; ++c) sum[n][c] = vdupq_n_s32(0);
  for (int k = 0; k < depth; k += 8) {
    int8x16_t a[kPairs];
    for (int n = 0; n < kPairs; ++n)
      a[n] = two_rows(bytes + 2 * n * depth + k, bytes + (2 * n + 1) * depth + k);
    for (int c = 0; c < 4; ++c) {
      const int32x4_t near = vreinterpretq_s32_s8(vld1q_s8(panel + k * kPanel + c * 16));
      const int32x4_t far = vreinterpretq_s32_s8(vld1q_s8(panel + (k + 4) * kPanel + c * 16));
      const int8x16_t left = vreinterpretq_s8_s32(vzip1q_s32(near, far));
      const int8x16_t right = vreinterpretq_s8_s32(vzip2q_s32(near, far));
      for (int n = 0; n < kPairs; ++n) {
        sum[n][2 * c] = vmmlaq_s32(sum[n][2 * c], a[n], left);
        sum[n][2 * c + 1] = vmmlaq_s32(sum[n][2 * c + 1], a[n], right);
      }
    }
  }
  for (int n = 0; n < kPairs; ++n)
    for (int c = 0; c < 8; ++c) {
      std::int32_t* out = sums + 2 * n * stride + 2 * c;
      vst1_s32(out, vget_low_s32(sum[n][c]));
      vst1_s32(out + stride, vget_high_s32(sum[n][c]));
    }
}

}  // namespace

void product_i8mm(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                  const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel, paired = rows / 2 * 2;
  for (int p = 0; p < panel_count; ++p) {
    const std::int8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel;
    std::int32_t* out = sums + p * kPanel;
    int r = 0;
    for (; r + 4 <= paired; r += 4)
      multiply_pairs<2>(bytes + r * depth, depth, panel, stride, out + r * stride);
    for (; r < paired; r += 2)
      multiply_pairs<1>(bytes + r * depth, depth, panel, stride, out + r * stride);
  }
  if (paired < rows)
    product_neon(bytes + paired * depth, 1, depth, panels, offsets, panel_count,
                 sums + paired * stride);
}

}  // namespace outrider
