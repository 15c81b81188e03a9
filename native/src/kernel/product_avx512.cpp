#include "product_pairs.h"

namespace outrider {
namespace {

struct Avx512 {
  using Type = __m512i;
  static constexpr int kBytes = 64;
  static constexpr int kSums = 16;  // panels of sums: half of the registers

  static Type load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, Type x) { _mm512_storeu_si512(to, x); }
  static Type broadcast(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Type add(Type a, Type b) { return _mm512_add_epi32(a, b); }
  static Type flip(Type a, Type b) { return _mm512_xor_si512(a, b); }
  static Type pairs(Type a, Type b) {
    return _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1));
  }
};

}  // namespace

// For machines without VNNI: Skylake-SP, Skylake-X and the first Xeon W.
void product_avx512(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                    const std::int32_t*, int panel_count, std::int32_t* sums) {
  pair_product<Avx512>(bytes, rows, depth, panels, panel_count, sums);
}

}  // namespace outrider
