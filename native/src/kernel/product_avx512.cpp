// The int8 product with AVX-512 on machines without VNNI: Skylake-SP, Skylake-X.
//
// `maddubs` multiplies unsigned by signed bytes and adds neighbours in 16 bits. The operands are
// |a|, and w if a >= 0 or ~w = -w - 1 if a < 0:
//
//     sum |a| (w or ~w) = sum a w - sum_{a < 0} |a|
//
// The last sum depends on the row alone and is added first. Two products are at most 2 * 127 * 128,
// without overflow.
#include "kernel.h"

#include <immintrin.h>

#include <cstring>

namespace outrider {
namespace {

constexpr int kRowsAtOnce = 4, kPanelsAtOnce = 4;  // 16 sums of 32 registers
constexpr int kChunk = 512;  // of the depth: two prepared rows take a kilobyte

// Rows prepared for the product.
struct PreparedRows {
  alignas(64) std::uint8_t size[kRowsAtOnce][kChunk];  // |a|
  alignas(64) std::int8_t sign[kRowsAtOnce][kChunk];   // all ones where a < 0
  std::int32_t start[kRowsAtOnce];                     // sum_{a < 0} |a|
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

inline __m512i broadcast_four(const void* bytes) {
  std::int32_t four;
  std::memcpy(&four, bytes, sizeof four);
  return _mm512_set1_epi32(four);
}

// A chunk of some rows and of some panels, which are `apart` bytes apart. `ahead` prefetches the
// next panels.
template <int kRows, int kPanels>
inline __attribute__((always_inline)) void run_block(const PreparedRows& rows, int depth,
                                                     bool first, const std::int8_t* panel,
                                                     std::ptrdiff_t apart, bool ahead, int stride,
                                                     std::int32_t* sums) {
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i sum[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) {
      sum[r][p] = _mm512_set1_epi32(rows.start[r]);
      if (!first)
        sum[r][p] = _mm512_add_epi32(sum[r][p], _mm512_loadu_si512(sums + r * stride + p * kPanel));
    }
  for (int k = 0; k < depth; k += 4) {
    __m512i weight[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      const std::int8_t* from = panel + p * apart + k * kPanel;
      weight[p] = _mm512_load_si512(from);
      if (ahead) _mm_prefetch(reinterpret_cast<const char*>(from + kPanels * apart), _MM_HINT_T1);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512i size = broadcast_four(rows.size[r] + k),
                    sign = broadcast_four(rows.sign[r] + k);
      for (int p = 0; p < kPanels; ++p) {
        const __m512i pairs = _mm512_maddubs_epi16(size, _mm512_xor_si512(weight[p], sign));
        sum[r][p] = _mm512_add_epi32(sum[r][p], _mm512_madd_epi16(pairs, ones));
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      _mm512_storeu_si512(sums + r * stride + p * kPanel, sum[r][p]);
}

// Some rows and all panels.
template <int kRows>
inline void run_rows(const std::int8_t* bytes, int depth, const std::int8_t* panels,
                     int panel_count, bool ahead, std::int32_t* sums) {
  const int stride = panel_count * kPanel;
  const std::ptrdiff_t apart = static_cast<std::ptrdiff_t>(depth) * kPanel;
  PreparedRows rows;
  for (int from = 0; from < depth; from += kChunk) {
    const int some = depth - from < kChunk ? depth - from : kChunk;
    for (int r = 0; r < kRows; ++r) prepare_row(bytes + r * depth + from, some, r, rows);
    const std::int8_t* panel = panels + from * kPanel;
    int p = 0;
    for (; p + kPanelsAtOnce <= panel_count; p += kPanelsAtOnce)
      run_block<kRows, kPanelsAtOnce>(rows, some, from == 0, panel + p * apart, apart, ahead,
                                      stride, sums + p * kPanel);
    for (; p < panel_count; ++p)
      run_block<kRows, 1>(rows, some, from == 0, panel + p * apart, apart, ahead, stride,
                          sums + p * kPanel);
  }
}

}  // namespace

// The first rows read weights from memory and prefetch the next panels.
void product_avx512(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                    const std::int32_t*, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel;
  int r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce)
    run_rows<kRowsAtOnce>(bytes + r * depth, depth, panels, panel_count, r == 0, sums + r * stride);
  const std::int8_t* rest = bytes + r * depth;
  std::int32_t* out = sums + r * stride;
  switch (rows - r) {  // together, so that weights are read once
    case 3:
      return run_rows<3>(rest, depth, panels, panel_count, r == 0, out);
    case 2:
      return run_rows<2>(rest, depth, panels, panel_count, r == 0, out);
    case 1:
      return run_rows<1>(rest, depth, panels, panel_count, r == 0, out);
    default:
      return;
  }
}

}  // namespace outrider
