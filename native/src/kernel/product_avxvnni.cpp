#include "product_vnni.h"

namespace outrider {
namespace {

struct Vnni256 {
  using Type = __m256i;
  static constexpr int kBytes = 32, kManyRows = 6, kManyPanels = 1, kSums = 4;

  static Type load(const void* from) { return _mm256_loadu_si256(static_cast<const Type*>(from)); }
  static void store(void* to, Type x) { _mm256_storeu_si256(static_cast<Type*>(to), x); }
  static Type broadcast(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Type negative(Type x) { return _mm256_sub_epi32(_mm256_setzero_si256(), x); }
  static Type flip(Type a, Type b) { return _mm256_xor_si256(a, b); }
  // The same instruction in its AVX-512 encoding, so that machines with AVX-512 can test this file.
  static Type dot(Type sum, Type a, Type b) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, a, b);
#else
    return _mm256_dpbusd_epi32(sum, a, b);
#endif
  }
};

}  // namespace

// For machines with VNNI in vectors of 32 bytes only: Alder Lake and later desktops.
void OUTRIDER_KERNEL(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                     const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  vnni_product<Vnni256, true>(bytes, rows, depth, panels, offsets, panel_count, sums);
}

}  // namespace outrider
