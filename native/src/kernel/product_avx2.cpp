// The int8 product with AVX2.
//
// `maddubs` multiplies unsigned by signed bytes and adds neighbours in 16 bits. With |a| unsigned
// and the sign of a applied to the weight, two products are at most 2 * 127 * 127, without
// overflow.
#include "kernel.h"

#include <immintrin.h>

#include <cstring>

namespace outrider {
namespace {

struct Pair {
  __m256i low, high;
};

// `ahead` prefetches the next panel.
template <int kRows>
inline void run_rows(const std::int8_t* bytes, int depth, const std::int8_t* panel, bool ahead,
                     int stride, std::int32_t* sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  Pair sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int k = 0; k < depth; k += 4) {
    const auto* at = reinterpret_cast<const __m256i*>(panel + k * kPanel);
    const __m256i low = _mm256_load_si256(at), high = _mm256_load_si256(at + 1);
    if (ahead) _mm_prefetch(reinterpret_cast<const char*>(at) + depth * kPanel, _MM_HINT_T1);
    for (int r = 0; r < kRows; ++r) {
      std::int32_t four;
      std::memcpy(&four, bytes + r * depth + k, sizeof four);
      const __m256i a = _mm256_set1_epi32(four), size = _mm256_abs_epi8(a);
      const __m256i left = _mm256_maddubs_epi16(size, _mm256_sign_epi8(low, a));
      const __m256i right = _mm256_maddubs_epi16(size, _mm256_sign_epi8(high, a));
      sum[r].low = _mm256_add_epi32(sum[r].low, _mm256_madd_epi16(left, ones));
      sum[r].high = _mm256_add_epi32(sum[r].high, _mm256_madd_epi16(right, ones));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    auto* out = reinterpret_cast<__m256i*>(sums + r * stride);
    _mm256_storeu_si256(out, sum[r].low);
    _mm256_storeu_si256(out + 1, sum[r].high);
  }
}

}  // namespace

void product_avx2(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                  const std::int32_t*, int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel;
  for (int p = 0; p < panel_count; ++p) {
    const std::int8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel;
    std::int32_t* out = sums + p * kPanel;
    int r = 0;
    for (; r + 4 <= rows; r += 4)
      run_rows<4>(bytes + r * depth, depth, panel, r == 0, stride, out + r * stride);
    const std::int8_t* rest = bytes + r * depth;
    if (rows - r == 3)
      run_rows<3>(rest, depth, panel, r == 0, stride, out + r * stride);
    else if (rows - r == 2)
      run_rows<2>(rest, depth, panel, r == 0, stride, out + r * stride);
    else if (rows - r == 1)
      run_rows<1>(rest, depth, panel, r == 0, stride, out + r * stride);
  }
}

}  // namespace outrider
