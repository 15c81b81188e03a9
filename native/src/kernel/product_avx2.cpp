#include "product_pairs.h"

namespace outrider {
namespace {

struct Avx2 {
  using Type = __m256i;
  static constexpr int kBytes = 32;
  static constexpr int kSums = 4;  // panels of sums: eight of sixteen registers

  static Type load(const void* from) { return _mm256_loadu_si256(static_cast<const Type*>(from)); }
  static void store(void* to, Type x) { _mm256_storeu_si256(static_cast<Type*>(to), x); }
  static Type broadcast(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Type add(Type a, Type b) { return _mm256_add_epi32(a, b); }
  static Type flip(Type a, Type b) { return _mm256_xor_si256(a, b); }
  static Type pairs(Type a, Type b) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
  }
};

}  // namespace

void product_avx2(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                  const std::int32_t*, int panel_count, std::int32_t* sums) {
  pair_product<Avx2>(bytes, rows, depth, panels, panel_count, sums);
}

}  // namespace outrider
