// The int8 product on machines that add neighbouring products in 16 bits (`maddubs`): AVX2, and
// AVX-512 without VNNI.
//
// They multiply unsigned by signed bytes. |a| goes in, and against it w where a >= 0 and ~w, which
// is -w - 1, where a < 0:
//
//     sum |a| (w or ~w) = sum a w - sum_{a < 0} |a|
//
// The last sum belongs to the row alone, and is added beforehand. Two products are at most
// 2 * 127 * 128, which still fits, so that the result is exact for all bytes above -128.
#pragma once

#include "kernel.h"

#include <immintrin.h>

#include <cstring>

namespace outrider {
namespace {

constexpr int kChunk = 512;  // of the depth, whose prepared rows lie on the stack
constexpr int kMostRows = 4;

// Some rows, ready to be multiplied.
struct PreparedRows {
  alignas(64) std::uint8_t size[kMostRows][kChunk];  // |a|
  alignas(64) std::int8_t sign[kMostRows][kChunk];   // all ones where a < 0
  std::int32_t start[kMostRows];                     // sum_{a < 0} |a|
};

inline void prepare_row(const std::int8_t* bytes, int depth, int row, PreparedRows& out) {
  std::int32_t start = 0;
  for (int k = 0; k < depth; ++k) {
    const int a = bytes[k];
    out.size[row][k] = static_cast<std::uint8_t>(a < 0 ? -a : a);
    out.sign[row][k] = static_cast<std::int8_t>(a < 0 ? -1 : 0);
    start += a < 0 ? -a : 0;
  }
  out.start[row] = start;
}

template <typename V>
inline __attribute__((always_inline)) typename V::Type spread(const void* four_bytes) {
  std::int32_t four;
  std::memcpy(&four, four_bytes, sizeof four);
  return V::broadcast(four);
}

// A chunk of some rows against a chunk of some panels, `apart` bytes apart.
template <typename V, int kRows, int kPanels>
inline __attribute__((always_inline)) void pair_block(const PreparedRows& rows, int depth,
                                                      bool first, const std::int8_t* panel,
                                                      std::ptrdiff_t apart, int stride,
                                                      std::int32_t* sums) {
  constexpr int kParts = kPanel * 4 / V::kBytes, kColumns = kPanel / kParts;
  typename V::Type sum[kRows][kPanels][kParts];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      for (int h = 0; h < kParts; ++h) {
        const std::int32_t* before = sums + r * stride + p * kPanel + h * kColumns;
        const auto start = V::broadcast(rows.start[r]);
        sum[r][p][h] = first ? start : V::add(start, V::load(before));
      }
  for (int k = 0; k < depth; k += 4) {
    typename V::Type weight[kPanels][kParts];
    for (int p = 0; p < kPanels; ++p)
      for (int h = 0; h < kParts; ++h)
        weight[p][h] = V::load(panel + p * apart + k * kPanel + h * V::kBytes);
    for (int r = 0; r < kRows; ++r) {
      const auto size = spread<V>(rows.size[r] + k), sign = spread<V>(rows.sign[r] + k);
      for (int p = 0; p < kPanels; ++p)
        for (int h = 0; h < kParts; ++h)
          sum[r][p][h] = V::add(sum[r][p][h], V::pairs(size, V::flip(weight[p][h], sign)));
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      for (int h = 0; h < kParts; ++h)
        V::store(sums + r * stride + p * kPanel + h * kColumns, sum[r][p][h]);
}

// Some rows against all panels.
template <typename V, int kRows>
inline void pair_rows(const std::int8_t* bytes, int depth, const std::int8_t* panels,
                      int panel_count, std::int32_t* sums) {
  // So many panels that their sums fit into registers, and few enough to be read in step.
  constexpr int kFew = V::kSums / kRows < 4 ? V::kSums / kRows : 4;
  const int stride = panel_count * kPanel;
  const std::ptrdiff_t apart = static_cast<std::ptrdiff_t>(depth) * kPanel;
  PreparedRows rows;
  for (int from = 0; from < depth; from += kChunk) {
    const int some = depth - from < kChunk ? depth - from : kChunk;
    for (int r = 0; r < kRows; ++r) prepare_row(bytes + r * depth + from, some, r, rows);
    const std::int8_t* panel = panels + from * kPanel;
    int p = 0;
    for (; p + kFew <= panel_count; p += kFew)
      pair_block<V, kRows, kFew>(rows, some, from == 0, panel + p * apart, apart, stride,
                                 sums + p * kPanel);
    for (; p < panel_count; ++p)
      pair_block<V, kRows, 1>(rows, some, from == 0, panel + p * apart, apart, stride,
                              sums + p * kPanel);
  }
}

template <typename V>
inline void pair_product(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                         int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel;
  int r = 0;
  for (; r + kMostRows <= rows; r += kMostRows)
    pair_rows<V, kMostRows>(bytes + r * depth, depth, panels, panel_count, sums + r * stride);
  for (; r < rows; ++r)
    pair_rows<V, 1>(bytes + r * depth, depth, panels, panel_count, sums + r * stride);
}

}  // namespace
}  // namespace outrider
