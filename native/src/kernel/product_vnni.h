// The int8 product with VNNI: four bytes a lane, one instruction for as many columns as a vector
// has.
//
// `dpbusd` takes unsigned bytes, so the operand is a + 128, and 128 times the column sum is
// subtracted. For vectors of 64 bytes (also used by the AMX product for few rows) and of 32.
#pragma once

#include "kernel.h"

#include <immintrin.h>

#include <cstring>

// Sums stay in registers only if all loops over them are unrolled.
#if defined(__clang__)
#define OUTRIDER_UNROLLED _Pragma("unroll")
#else
#define OUTRIDER_UNROLLED _Pragma("GCC unroll 16")
#endif

namespace outrider {
namespace {

// V describes a machine: its vector `Type` of `kBytes` and its operations; `kManyRows` and
// `kManyPanels`, whose sums fit into registers with weights in the L1 cache; `kSums`, panels of
// sums that fit with fewer rows. `kAhead` prefetches the next panels.
template <typename V, int kRows, int kPanels, bool kFlipped, bool kAhead = false>
inline __attribute__((always_inline)) void vnni_block(const std::int8_t* bytes, int depth,
                                                      const std::int8_t* panel,
                                                      const std::int32_t* offsets, int stride,
                                                      std::int32_t* sums) {
  constexpr int kParts = kPanel * 4 / V::kBytes, kColumns = kPanel / kParts;
  const auto flip = V::broadcast(static_cast<int>(0x80808080u));
  typename V::Type sum[kRows][kPanels * kParts];
  OUTRIDER_UNROLLED
  for (int p = 0; p < kPanels * kParts; ++p) {
    const auto less = V::negative(V::load(offsets + p * kColumns));
    OUTRIDER_UNROLLED
    for (int r = 0; r < kRows; ++r) sum[r][p] = less;
  }
  for (int k = 0; k < depth; k += 4) {
    typename V::Type weight[kPanels * kParts];
    OUTRIDER_UNROLLED
    for (int p = 0; p < kPanels * kParts; ++p) {
      const std::int8_t* from = panel + (p / kParts * depth + k) * kPanel + p % kParts * V::kBytes;
      weight[p] = V::load(from);
      if (kAhead && p % kParts == 0) __builtin_prefetch(from + kPanels * depth * kPanel, 0, 2);
    }
    OUTRIDER_UNROLLED
    for (int r = 0; r < kRows; ++r) {
      std::int32_t four;
      std::memcpy(&four, bytes + r * depth + k, sizeof four);
      auto a = V::broadcast(four);
      if constexpr (!kFlipped) a = V::flip(a, flip);
      OUTRIDER_UNROLLED
      for (int p = 0; p < kPanels * kParts; ++p) sum[r][p] = V::dot(sum[r][p], a, weight[p]);
    }
  }
  OUTRIDER_UNROLLED
  for (int r = 0; r < kRows; ++r) {
    OUTRIDER_UNROLLED
    for (int p = 0; p < kPanels * kParts; ++p)
      V::store(sums + r * stride + p * kColumns, sum[r][p]);
  }
}

// Few rows and all panels: each weight is read once.
template <typename V, int kRows, bool kFlipped>
inline void few_rows(const std::int8_t* bytes, int depth, const std::int8_t* panels,
                     const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  constexpr int kFew = V::kSums / kRows < 4 ? V::kSums / kRows : 4;
  const int stride = panel_count * kPanel;
  int p = 0;
  for (; p + kFew <= panel_count; p += kFew)
    vnni_block<V, kRows, kFew, kFlipped>(bytes, depth,
                                         panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
                                         offsets + p * kPanel, stride, sums + p * kPanel);
  for (; p < panel_count; ++p)
    vnni_block<V, kRows, 1, kFlipped>(bytes, depth,
                                      panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
                                      offsets + p * kPanel, stride, sums + p * kPanel);
}

// Some panels and fewer than `kRows` rows.
template <typename V, int kRows, int kPanels, bool kFlipped, bool kAhead>
inline void last_rows(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panel,
                      const std::int32_t* offsets, int stride, std::int32_t* sums) {
  if constexpr (kRows > 1) {
    if (rows == kRows - 1)
      vnni_block<V, kRows - 1, kPanels, kFlipped, kAhead>(bytes, depth, panel, offsets, stride,
                                                          sums);
    else
      last_rows<V, kRows - 1, kPanels, kFlipped, kAhead>(bytes, rows, depth, panel, offsets, stride,
                                                         sums);
  }
}

// Some panels and all rows. The first rows read the panels from memory and prefetch the next ones;
// the other rows read them from the L1 cache.
template <typename V, int kPanels, bool kFlipped>
inline void many_rows(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panel,
                      const std::int32_t* offsets, int stride, std::int32_t* sums) {
  if (rows < V::kManyRows)
    return last_rows<V, V::kManyRows, kPanels, kFlipped, true>(bytes, rows, depth, panel, offsets,
                                                               stride, sums);
  vnni_block<V, V::kManyRows, kPanels, kFlipped, true>(bytes, depth, panel, offsets, stride, sums);
  int r = V::kManyRows;
  for (; r + V::kManyRows <= rows; r += V::kManyRows)
    vnni_block<V, V::kManyRows, kPanels, kFlipped>(bytes + r * depth, depth, panel, offsets, stride,
                                                   sums + r * stride);
  last_rows<V, V::kManyRows, kPanels, kFlipped, false>(bytes + r * depth, rows - r, depth, panel,
                                                       offsets, stride, sums + r * stride);
}

// With `kFlipped` the bytes are already a + 128.
template <typename V, bool kFlipped>
inline void vnni_product(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                         const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel;
  switch (rows) {
    case 1:
      return few_rows<V, 1, kFlipped>(bytes, depth, panels, offsets, panel_count, sums);
    case 2:
      return few_rows<V, 2, kFlipped>(bytes, depth, panels, offsets, panel_count, sums);
    case 3:
      return few_rows<V, 3, kFlipped>(bytes, depth, panels, offsets, panel_count, sums);
    case 4:
      return few_rows<V, 4, kFlipped>(bytes, depth, panels, offsets, panel_count, sums);
    default:
      break;
  }
  for (int p = 0; p < panel_count;) {
    const std::int8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel;
    const bool some = p + V::kManyPanels <= panel_count;
    (some ? many_rows<V, V::kManyPanels, kFlipped>
          : many_rows<V, 1, kFlipped>)(bytes, rows, depth, panel, offsets + p * kPanel, stride,
                                       sums + p * kPanel);
    p += some ? V::kManyPanels : 1;
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
