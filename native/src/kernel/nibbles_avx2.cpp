#include "nibbles.h"

namespace outrider {
namespace {

struct Avx2 {
  using Type = __m256i;
  static constexpr int kBytes = 32;

  static Type load(const void* from) { return _mm256_load_si256(static_cast<const Type*>(from)); }
  static void store(void* to, Type x) { _mm256_storeu_si256(static_cast<Type*>(to), x); }
  static Type broadcast(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Type low(Type x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static Type plus(Type x, Type y) { return _mm256_add_epi32(x, y); }
  static Type high(Type x) { return low(_mm256_srli_epi16(x, 4)); }

  // In 16 bits: a group has eight pairs of at most 2 * 15 * 127 for each half.
  static Type add_products(Type sum, Type nibbles, Type bytes) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(nibbles, bytes));
  }
  static Type widened(Type sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

}  // namespace

void nibbles_avx2(const std::int8_t* bytes, int rows, int groups, const std::uint8_t* panels,
                  int panel_count, std::int32_t* dots) {
  nibble_product<Avx2>(bytes, rows, groups, panels, panel_count, dots);
}

}  // namespace outrider
