// For AVX-512; compiled with VNNI and without.
#include "nibbles.h"

namespace outrider {
namespace {

struct Wide {
  using Type = __m512i;
  static constexpr int kBytes = 64;

  static Type load(const void* from) { return _mm512_load_si512(from); }
  static void store(void* to, Type x) { _mm512_storeu_si512(to, x); }
  static Type broadcast(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Type low(Type x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static Type high(Type x) { return low(_mm512_srli_epi16(x, 4)); }
  static Type plus(Type x, Type y) { return _mm512_add_epi32(x, y); }

#if defined(__AVX512VNNI__)
  static Type add_products(Type sum, Type nibbles, Type bytes) {
    return _mm512_dpbusd_epi32(sum, nibbles, bytes);
  }
  static Type widened(Type sum) { return sum; }
#else
  // In 16 bits: a group has eight pairs of at most 2 * 15 * 127 for each half.
  static Type add_products(Type sum, Type nibbles, Type bytes) {
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(nibbles, bytes));
  }
  static Type widened(Type sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
#endif
};

}  // namespace

void OUTRIDER_KERNEL(const std::int8_t* bytes, int rows, int groups, const std::uint8_t* panels,
                     int panel_count, std::int32_t* dots) {
  nibble_product<Wide>(bytes, rows, groups, panels, panel_count, dots);
}

}  // namespace outrider
