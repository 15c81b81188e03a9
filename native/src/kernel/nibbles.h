// Products with weights of four bits, for machines with vectors of bytes.
//
// Nibbles are unsigned and bytes are signed, like the operands of `maddubs` and `dpbusd`.
#pragma once

#include "kernel.h"

#include <immintrin.h>

#include <cstring>

namespace outrider {
namespace {

constexpr int kNibbleRows = 4;  // rows at once, whose sums fit into registers

// V describes a machine: its vector `Type` of `kBytes`, and sums of products over one group, which
// `widened` converts to 32 bits.
template <typename V>
struct NibbleSum {
  typename V::Type low{}, high{};

  void add(typename V::Type lows, typename V::Type bytes, typename V::Type highs,
           typename V::Type others) {
    low = V::add_products(low, lows, bytes);
    high = V::add_products(high, highs, others);
  }
  typename V::Type total() const { return V::plus(V::widened(low), V::widened(high)); }
};

template <typename V, int kRows>
inline __attribute__((always_inline)) void nibble_rows(const std::int8_t* bytes, int groups,
                                                       const std::uint8_t* panel, bool ahead,
                                                       std::ptrdiff_t stride, std::int32_t* dots) {
  constexpr int kParts = kPanel * 4 / V::kBytes;
  constexpr int kTurns = kRows == 1 ? 2 : 1;  // independent sums of one row, for latency
  for (int g = 0; g < groups; ++g, panel += kGroupBytes, bytes += kGroup, dots += kPanel)
    for (int part = 0; part < kParts; ++part) {
      NibbleSum<V> sum[kRows][kTurns];
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; k += 8) {
        const std::uint8_t* from = panel + k / 2 * kPanel + part * V::kBytes;
        const auto both = V::load(from), low = V::low(both), high = V::high(both);
        if (ahead && part == 0)
          _mm_prefetch(reinterpret_cast<const char*>(from + groups * kGroupBytes), _MM_HINT_T1);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          std::int32_t first, second;
          const std::int8_t* row = bytes + static_cast<std::ptrdiff_t>(r) * groups * kGroup + k;
          std::memcpy(&first, row, sizeof first);
          std::memcpy(&second, row + 4, sizeof second);
          sum[r][k / 8 % kTurns].add(low, V::broadcast(first), high, V::broadcast(second));
        }
      }
      for (int r = 0; r < kRows; ++r) {
        auto total = sum[r][0].total();
        if constexpr (kTurns == 2) total = V::plus(total, sum[r][1].total());
        V::store(dots + r * stride + part * (kPanel / kParts), total);
      }
    }
}

// The first rows read nibbles from memory and prefetch those of the next panel.
template <typename V>
inline void nibble_product(const std::int8_t* bytes, int rows, int groups,
                           const std::uint8_t* panels, int panel_count, std::int32_t* dots) {
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(panel_count) * groups * kPanel;
  for (int p = 0; p < panel_count; ++p) {
    const std::uint8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * groups * kGroupBytes;
    for (int r = 0; r < rows; r += kNibbleRows) {
      const std::int8_t* row = bytes + static_cast<std::ptrdiff_t>(r) * groups * kGroup;
      std::int32_t* out = dots + r * stride + p * groups * kPanel;
      switch (rows - r) {
        case 1:
          nibble_rows<V, 1>(row, groups, panel, r == 0, stride, out);
          break;
        case 2:
          nibble_rows<V, 2>(row, groups, panel, r == 0, stride, out);
          break;
        case 3:
          nibble_rows<V, 3>(row, groups, panel, r == 0, stride, out);
          break;
        default:
          nibble_rows<V, kNibbleRows>(row, groups, panel, r == 0, stride, out);
          break;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
