#include "nibbles.h"

namespace outrider {
namespace {

struct Avx512 {
  using Type = __m512i;
  static constexpr int kBytes = 64;

  static Type load(const void* from) { return _mm512_load_si512(from); }
  static void store(void* to, Type x) { _mm512_storeu_si512(to, x); }
  static Type broadcast(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Type low(Type x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static Type plus(Type x, Type y) { return _mm512_add_epi32(x, y); }
  static Type high(Type x) { return low(_mm512_srli_epi16(x, 4)); }

  // In 16 bits: a group has eight pairs of at most 2 * 15 * 127 for each half.
  struct Sum {
    Type low = _mm512_setzero_si512(), high = _mm512_setzero_si512();

    void add(Type nibbles, Type bytes, Type upper, Type others) {
      low = _mm512_add_epi16(low, _mm512_maddubs_epi16(nibbles, bytes));
      high = _mm512_add_epi16(high, _mm512_maddubs_epi16(upper, others));
    }
    Type total() const {
      const Type ones = _mm512_set1_epi16(1);
      return _mm512_add_epi32(_mm512_madd_epi16(low, ones), _mm512_madd_epi16(high, ones));
    }
  };
};

}  // namespace

void nibbles_avx512(const std::int8_t* bytes, int rows, int groups, const std::uint8_t* panels,
                    int panel_count, std::int32_t* dots) {
  nibble_product<Avx512>(bytes, rows, groups, panels, panel_count, dots);
}

}  // namespace outrider
