// The int8 product with AVX-512 VNNI: four bytes a lane, sixteen columns an instruction.
//
// `dpbusd` takes unsigned bytes, so a + 128 goes in and 128 times the column's sum is taken off.
// Shared with the AMX file, which leaves very few rows to it.
#pragma once

#include "kernel.h"

#include <immintrin.h>

#include <cstring>

namespace outrider {
namespace {

constexpr int kManyRows = 8, kFewPanels = 3;  // 24 sums at once; the panels stay in the first cache

template <int kRows, int kPanels, bool kFlipped>
inline __attribute__((always_inline)) void vnni_block(const std::int8_t* bytes, int depth,
                                                      const std::int8_t* panel,
                                                      const std::int32_t* offsets, int stride,
                                                      std::int32_t* sums) {
  const __m512i flip = _mm512_set1_epi32(static_cast<int>(0x80808080u));
  __m512i sum[kRows][kPanels];
  for (int p = 0; p < kPanels; ++p) {
    const __m512i less =
        _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(offsets + p * kPanel));
    for (int r = 0; r < kRows; ++r) sum[r][p] = less;
  }
  for (int k = 0; k < depth; k += 4) {
    __m512i weight[kPanels];
    for (int p = 0; p < kPanels; ++p)
      weight[p] = _mm512_load_si512(panel + (p * depth + k) * kPanel);
    for (int r = 0; r < kRows; ++r) {
      std::int32_t four;
      std::memcpy(&four, bytes + r * depth + k, sizeof four);
      __m512i a = _mm512_set1_epi32(four);
      if constexpr (!kFlipped) a = _mm512_xor_si512(a, flip);
      for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_dpbusd_epi32(sum[r][p], a, weight[p]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      _mm512_storeu_si512(sums + r * stride + p * kPanel, sum[r][p]);
}

// A few rows against all panels: each weight is read once.
template <int kRows, bool kFlipped>
inline void few_rows(const std::int8_t* bytes, int depth, const std::int8_t* panels,
                     const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel;
  int p = 0;
  for (; p + 4 <= panel_count; p += 4)
    vnni_block<kRows, 4, kFlipped>(bytes, depth,
                                   panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
                                   offsets + p * kPanel, stride, sums + p * kPanel);
  for (; p < panel_count; ++p)
    vnni_block<kRows, 1, kFlipped>(bytes, depth,
                                   panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
                                   offsets + p * kPanel, stride, sums + p * kPanel);
}

// Some panels against many rows.
template <int kPanels, bool kFlipped>
inline void many_rows(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panel,
                      const std::int32_t* offsets, int stride, std::int32_t* sums) {
  for (int r = 0; r + kManyRows <= rows; r += kManyRows)
    vnni_block<kManyRows, kPanels, kFlipped>(bytes + r * depth, depth, panel, offsets, stride,
                                             sums + r * stride);
}

// `kFlipped` says that the bytes are a + 128 already.
template <bool kFlipped>
inline void vnni_product(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                         const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel, many = rows / kManyRows * kManyRows;
  for (int p = 0; p < panel_count && many > 0;) {
    const std::int8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel;
    const bool some = p + kFewPanels <= panel_count;
    (some ? many_rows<kFewPanels, kFlipped> : many_rows<1, kFlipped>)(
        bytes, many, depth, panel, offsets + p * kPanel, stride, sums + p * kPanel);
    p += some ? kFewPanels : 1;
  }
  int r = many;
  for (; r + 4 <= rows; r += 4)
    few_rows<4, kFlipped>(bytes + r * depth, depth, panels, offsets, panel_count,
                          sums + r * stride);
  const std::int8_t* rest = bytes + r * depth;
  std::int32_t* out = sums + r * stride;
  switch (rows - r) {
    case 3:
      return few_rows<3, kFlipped>(rest, depth, panels, offsets, panel_count, out);
    case 2:
      return few_rows<2, kFlipped>(rest, depth, panels, offsets, panel_count, out);
    case 1:
      return few_rows<1, kFlipped>(rest, depth, panels, offsets, panel_count, out);
    default:
      return;
  }
}

}  // namespace
}  // namespace outrider
