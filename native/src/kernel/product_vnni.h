// The int8 product with VNNI: four bytes a lane, one instruction for as many columns as a vector has.
//
// `dpbusd` takes unsigned bytes, so a + 128 goes in and 128 times the column's sum is taken off.
// For vectors of 64 bytes (also in the AMX file, which leaves very few rows to it) and of 32.
#pragma once

#include "kernel.h"

#include <immintrin.h>

#include <cstring>

namespace outrider {
namespace {

// V is a machine: its vector `Type` of `kBytes`, what can be done with it, `kManyRows` and
// `kManyPanels` whose sums fit into registers beside weights that stay in the first cache, and
// `kSums`, panels of sums that fit if there are fewer rows.
template <typename V, int kRows, int kPanels, bool kFlipped>
inline __attribute__((always_inline)) void vnni_block(const std::int8_t* bytes, int depth,
                                                      const std::int8_t* panel,
                                                      const std::int32_t* offsets, int stride,
                                                      std::int32_t* sums) {
  constexpr int kParts = kPanel * 4 / V::kBytes, kColumns = kPanel / kParts;
  const auto flip = V::broadcast(static_cast<int>(0x80808080u));
  typename V::Type sum[kRows][kPanels][kParts];
  for (int p = 0; p < kPanels; ++p)
    for (int h = 0; h < kParts; ++h) {
      const auto less = V::negative(V::load(offsets + p * kPanel + h * kColumns));
      for (int r = 0; r < kRows; ++r) sum[r][p][h] = less;
    }
  for (int k = 0; k < depth; k += 4) {
    typename V::Type weight[kPanels][kParts];
    for (int p = 0; p < kPanels; ++p)
      for (int h = 0; h < kParts; ++h)
        weight[p][h] = V::load(panel + (p * depth + k) * kPanel + h * V::kBytes);
    for (int r = 0; r < kRows; ++r) {
      std::int32_t four;
      std::memcpy(&four, bytes + r * depth + k, sizeof four);
      auto a = V::broadcast(four);
      if constexpr (!kFlipped) a = V::flip(a, flip);
      for (int p = 0; p < kPanels; ++p)
        for (int h = 0; h < kParts; ++h)
          sum[r][p][h] = V::dot(sum[r][p][h], a, weight[p][h]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      for (int h = 0; h < kParts; ++h)
        V::store(sums + r * stride + p * kPanel + h * kColumns, sum[r][p][h]);
}

// A few rows against all panels: each weight is read once.
template <typename V, int kRows, bool kFlipped>
inline void few_rows(const std::int8_t* bytes, int depth, const std::int8_t* panels,
                     const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  constexpr int kFew = V::kSums / kRows < 4 ? V::kSums / kRows : 4;
  const int stride = panel_count * kPanel;
  int p = 0;
  for (; p + kFew <= panel_count; p += kFew)
    vnni_block<V, kRows, kFew, kFlipped>(
        bytes, depth, panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
        offsets + p * kPanel, stride, sums + p * kPanel);
  for (; p < panel_count; ++p)
    vnni_block<V, kRows, 1, kFlipped>(bytes, depth,
                                      panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
                                      offsets + p * kPanel, stride, sums + p * kPanel);
}

// Some panels against many rows.
template <typename V, int kPanels, bool kFlipped>
inline void many_rows(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panel,
                      const std::int32_t* offsets, int stride, std::int32_t* sums) {
  for (int r = 0; r + V::kManyRows <= rows; r += V::kManyRows)
    vnni_block<V, V::kManyRows, kPanels, kFlipped>(bytes + r * depth, depth, panel, offsets,
                                                   stride, sums + r * stride);
}

// `kFlipped` says that the bytes are a + 128 already.
template <typename V, bool kFlipped>
inline void vnni_product(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                         const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel, many = rows / V::kManyRows * V::kManyRows;
  for (int p = 0; p < panel_count && many > 0;) {
    const std::int8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel;
    const bool some = p + V::kManyPanels <= panel_count;
    (some ? many_rows<V, V::kManyPanels, kFlipped> : many_rows<V, 1, kFlipped>)(
        bytes, many, depth, panel, offsets + p * kPanel, stride, sums + p * kPanel);
    p += some ? V::kManyPanels : 1;
  }
  int r = many;
  for (; r + 4 <= rows; r += 4)
    few_rows<V, 4, kFlipped>(bytes + r * depth, depth, panels, offsets, panel_count,
                             sums + r * stride);
  const std::int8_t* rest = bytes + r * depth;
  std::int32_t* out = sums + r * stride;
  switch (rows - r) {
    case 3:
      return few_rows<V, 3, kFlipped>(rest, depth, panels, offsets, panel_count, out);
    case 2:
      return few_rows<V, 2, kFlipped>(rest, depth, panels, offsets, panel_count, out);
    case 1:
      return few_rows<V, 1, kFlipped>(rest, depth, panels, offsets, panel_count, out);
    default:
      return;
  }
}

#if defined(__AVX512VNNI__)
struct Vnni512 {
  using Type = __m512i;
  static constexpr int kBytes = 64, kManyRows = 8, kManyPanels = 3, kSums = 16;

  static Type load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, Type x) { _mm512_storeu_si512(to, x); }
  static Type broadcast(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Type negative(Type x) { return _mm512_sub_epi32(_mm512_setzero_si512(), x); }
  static Type flip(Type a, Type b) { return _mm512_xor_si512(a, b); }
  static Type dot(Type sum, Type a, Type b) { return _mm512_dpbusd_epi32(sum, a, b); }
};
#endif

}  // namespace
}  // namespace outrider
