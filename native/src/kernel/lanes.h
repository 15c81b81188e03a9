// Vectors of sixteen numbers in plain C++, made of as many native vectors as needed.
//
// (A single vector type of sixteen would be shorter, but with narrower native vectors GCC compares
// its elements one by one, which is ten times slower.)
//
// Sums are always computed in the same order, by lane and then along one tree, without fused
// operations (see CMakeLists.txt), so that every instruction set gives the same bits.
//
// Everything here is static: files compiled for different machines must not share functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace outrider {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

#define OUTRIDER_INLINE static inline __attribute__((always_inline, unused))

template <typename T>
constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));

// The native vector of T.
template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vector = typename VectorOf<T>::type;

template <typename T, int n>
struct Pack {
  static constexpr int kParts = n / kWidth<T>;
  Vector<T> part[kParts];
};

constexpr int kLanes = 16, kWideLanes = 8;
using Lanes = Pack<float, kLanes>;
using IntLanes = Pack<std::int32_t, kLanes>;
using WideLanes = Pack<double, kWideLanes>;

// Applies f to each vector, or to corresponding vectors of several packs.
template <typename Out, typename F, typename... Packs>
OUTRIDER_INLINE Out each_part(F f, const Packs&... packs) {
  Out out;
#pragma GCC unroll 4
  for (int i = 0; i < Out::kParts; ++i) out.part[i] = f(packs.part[i]...);
  return out;
}

#define OUTRIDER_OPERATOR(op)                                                                   \
  template <typename T, int n>                                                                  \
  OUTRIDER_INLINE Pack<T, n> operator op(const Pack<T, n>& a, const Pack<T, n>& b) {            \
    return each_part<Pack<T, n>>([](auto x, auto y) { return x op y; }, a, b);                  \
  }                                                                                             \
  template <typename T, int n>                                                                  \
  OUTRIDER_INLINE Pack<T, n> operator op(const Pack<T, n>& a, std::type_identity_t<T> number) { \
    return each_part<Pack<T, n>>([number](auto x) { return x op number; }, a);                  \
  }                                                                                             \
  template <typename T, int n>                                                                  \
  OUTRIDER_INLINE Pack<T, n> operator op(std::type_identity_t<T> number, const Pack<T, n>& a) { \
    return each_part<Pack<T, n>>([number](auto x) { return number op x; }, a);                  \
  }
OUTRIDER_OPERATOR(+)
OUTRIDER_OPERATOR(-)
OUTRIDER_OPERATOR(*)
OUTRIDER_OPERATOR(/)
#undef OUTRIDER_OPERATOR

template <typename T, int n>
OUTRIDER_INLINE Pack<T, n> operator-(const Pack<T, n>& a) {
  return each_part<Pack<T, n>>([](auto x) { return -x; }, a);
}

template <typename P, typename T>
OUTRIDER_INLINE P broadcast_as(T x) {
  return each_part<P>([x]() { return x - Vector<T>{}; });
}

OUTRIDER_INLINE Lanes broadcast(float x) { return broadcast_as<Lanes>(x); }

// Vector by vector: a pack copied as a whole stays in memory.
template <typename P, typename T>
OUTRIDER_INLINE P load_as(const T* from) {
  P out;
#pragma GCC unroll 4
  for (int i = 0; i < P::kParts; ++i)
    std::memcpy(&out.part[i], from + i * kWidth<T>, sizeof out.part[i]);
  return out;
}

OUTRIDER_INLINE Lanes load(const float* from) { return load_as<Lanes>(from); }

template <typename T, int n>
OUTRIDER_INLINE void store(T* to, const Pack<T, n>& x) {
#pragma GCC unroll 4
  for (int i = 0; i < x.kParts; ++i) std::memcpy(to + i * kWidth<T>, &x.part[i], sizeof x.part[i]);
}

// The first `count` numbers, and `rest` in the other lanes.
OUTRIDER_INLINE Lanes load_partial(const float* from, int count, float rest) {
  float all[kLanes];
  store(all, broadcast(rest));
  std::memcpy(all, from, static_cast<std::size_t>(count) * sizeof(float));
  return load(all);
}

template <typename T, int n>
OUTRIDER_INLINE void store_partial(T* to, const Pack<T, n>& x, int count) {
  T all[n];
  store(all, x);
  std::memcpy(to, all, static_cast<std::size_t>(count) * sizeof(T));
}

// The first `count` lanes, and zeros in the others.
OUTRIDER_INLINE Lanes mask_after(const Lanes& x, int count) {
  float all[kLanes];
  store(all, x);
  return load_partial(all, count, 0.0f);
}

// `yes` where x >= limit, else `no`; also `no` where x is NaN.
OUTRIDER_INLINE WideLanes where_at_least(const WideLanes& x, double limit, const WideLanes& yes,
                                         const WideLanes& no) {
  return each_part<WideLanes>([limit](auto a, auto y, auto z) { return a >= limit ? y : z; }, x,
                              yes, no);
}

OUTRIDER_INLINE Lanes max_lanes(const Lanes& a, const Lanes& b) {
  return each_part<Lanes>([](auto x, auto y) { return x > y ? x : y; }, a, b);
}

OUTRIDER_INLINE Lanes min_lanes(const Lanes& a, const Lanes& b) {
  return each_part<Lanes>([](auto x, auto y) { return x < y ? x : y; }, a, b);
}

// y, negated where x < 0.
OUTRIDER_INLINE Lanes with_sign_of(const Lanes& x, const Lanes& y) {
  return each_part<Lanes>([](auto a, auto b) { return a < 0.0f ? -b : b; }, x, y);
}

OUTRIDER_INLINE Lanes abs_lanes(const Lanes& x) { return with_sign_of(x, x); }

OUTRIDER_INLINE Lanes add_lanes(const Lanes& a, const Lanes& b) { return a + b; }

template <int away, typename V, int... places>
OUTRIDER_INLINE V swap_lanes(V x, std::integer_sequence<int, places...>) {
  return __builtin_shufflevector(x, x, (places ^ away)...);
}

// Combines lanes 8, 4, 2 and 1 places apart: the same tree on every machine.
template <typename Join>
OUTRIDER_INLINE float reduce(Lanes x, Join join) {
  constexpr std::make_integer_sequence<int, kWidth<float>> places;
#pragma GCC unroll 2
  for (int apart = Lanes::kParts / 2; apart > 0; apart /= 2)
#pragma GCC unroll 2
    for (int i = 0; i < apart; ++i) x.part[i] = join(x.part[i], x.part[i + apart]);
  Vector<float> all = x.part[0];
  if constexpr (kWidth<float> > 8) all = join(all, swap_lanes<8>(all, places));
  if constexpr (kWidth<float> > 4) all = join(all, swap_lanes<4>(all, places));
  all = join(all, swap_lanes<2>(all, places));
  all = join(all, swap_lanes<1>(all, places));
  return all[0];
}

OUTRIDER_INLINE float reduce_sum(const Lanes& x) {
  return reduce(x, [](Vector<float> a, Vector<float> b) { return a + b; });
}

OUTRIDER_INLINE float reduce_max(const Lanes& x) {
  return reduce(x, [](Vector<float> a, Vector<float> b) { return a > b ? a : b; });
}

OUTRIDER_INLINE Lanes to_floats(const IntLanes& x) {
  return each_part<Lanes>([](auto a) { return __builtin_convertvector(a, Vector<float>); }, x);
}

OUTRIDER_INLINE IntLanes to_ints(const Lanes& x) {
  return each_part<IntLanes>(
      [](auto a) { return __builtin_convertvector(a, Vector<std::int32_t>); }, x);
}

// Reinterprets the bits as type T.
template <typename T, typename From, int n>
OUTRIDER_INLINE Pack<T, n> as_bits(const Pack<From, n>& x) {
  return each_part<Pack<T, n>>([](auto a) { return reinterpret_cast<Vector<T>>(a); }, x);
}

// The first `count` lanes, from -128 to 127, as bytes.
OUTRIDER_INLINE void store_bytes(std::int8_t* to, const IntLanes& x, int count) {
#if defined(__AVX512F__)
  typedef std::int8_t Bytes __attribute__((vector_size(kLanes)));
  const Bytes bytes = __builtin_convertvector(x.part[0], Bytes);
#elif defined(__SSE2__)  // GCC would store single bytes
  std::int32_t whole[kLanes];
  store(whole, x);
  const auto* four = reinterpret_cast<const __m128i*>(whole);
  const __m128i low = _mm_packs_epi32(_mm_loadu_si128(four), _mm_loadu_si128(four + 1));
  const __m128i high = _mm_packs_epi32(_mm_loadu_si128(four + 2), _mm_loadu_si128(four + 3));
  const __m128i bytes = _mm_packs_epi16(low, high);
#else
  std::int32_t whole[kLanes];
  store(whole, x);
  std::int8_t bytes[kLanes];
  for (int k = 0; k < kLanes; ++k) bytes[k] = static_cast<std::int8_t>(whole[k]);
#endif
  std::memcpy(to, &bytes, static_cast<std::size_t>(count));
}

OUTRIDER_INLINE WideLanes load_wide(const float* from) {
  typedef float Narrow __attribute__((vector_size(kVectorBytes / 2)));
  WideLanes out;
#pragma GCC unroll 4
  for (int i = 0; i < WideLanes::kParts; ++i) {
    Narrow few;
    std::memcpy(&few, from + i * kWidth<double>, sizeof few);
    out.part[i] = __builtin_convertvector(few, Vector<double>);
  }
  return out;
}

// Sixteen numbers with these upper halves.
OUTRIDER_INLINE Lanes load_bfloat16(const std::uint16_t* from) {
  typedef std::uint16_t Narrow __attribute__((vector_size(kVectorBytes / 2)));
  IntLanes out;
#pragma GCC unroll 4
  for (int i = 0; i < IntLanes::kParts; ++i) {
    Narrow few;
    std::memcpy(&few, from + i * kWidth<std::int32_t>, sizeof few);
    out.part[i] = __builtin_convertvector(few, Vector<std::int32_t>) << 16;
  }
  return as_bits<float>(out);
}

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even.
OUTRIDER_INLINE Lanes round_lanes(const Lanes& x) { return (x + 12582912.0f) - 12582912.0f; }

// e^x as 2^n e^r with |r| <= ln(2)/2. The polynomial is that of the Cephes library (S. Moshier),
// with an error of at most two units in the last place; its terms are summed in pairs for latency.
OUTRIDER_INLINE Lanes exp_lanes(Lanes x) {
  x = max_lanes(min_lanes(x, broadcast(88.0f)), broadcast(-87.0f));
  const Lanes n = round_lanes(x * 1.44269504f);
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const Lanes square = r * r;
  const Lanes low = r * 1.6666665459e-1f + 5.0000001201e-1f;
  const Lanes middle = r * 8.3334519073e-3f + 4.1665795894e-2f;
  const Lanes high = r * 1.9875691500e-4f + 1.3981999507e-3f;
  const Lanes p = (high * square + middle) * square + low;
  const auto power = [](auto a) { return (a + 127) << 23; };
  const Lanes scale = as_bits<float>(each_part<IntLanes>(power, to_ints(n)));
  return (p * square + (r + 1.0f)) * scale;
}

// The same for 8 non-positive doubles; 0 below -708 and for NaN. The rational function is that of
// the Cephes library, with an error of about one unit in the last place.
OUTRIDER_INLINE WideLanes exp_wide(const WideLanes& given) {
  const WideLanes zero = broadcast_as<WideLanes>(0.0);
  const WideLanes x = where_at_least(given, -708.0, given, zero);
  const WideLanes shifted = x * 1.4426950408889634 + 6755399441055744.0;
  const WideLanes n = shifted - 6755399441055744.0;  // 1.5 * 2^52, as in round_lanes
  const WideLanes r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6;
  const WideLanes square = r * r;
  const WideLanes p =
      r * ((square * 1.26177193074810590878e-4 + 3.02994407707441961300e-2) * square +
           9.99999999999999999910e-1);
  const WideLanes q = ((square * 3.00198505138664455042e-6 + 2.52448340349684104192e-3) * square +
                       2.27265548208155028766e-1) *
                          square +
                      2.00000000000000000009;
  using WideIntLanes = Pack<std::int64_t, kWideLanes>;
  const auto power = [](auto a) { return (a + 1023) << 52; };  // the low bits are those of n
  const WideLanes scale =
      as_bits<double>(each_part<WideIntLanes>(power, as_bits<std::int64_t>(shifted)));
  const WideLanes mass = (1.0 + 2.0 * (p / (q - p))) * scale;
  return where_at_least(given, -708.0, mass, zero);
}

OUTRIDER_INLINE Lanes tanh_lanes(const Lanes& x) {
  return 1.0f - 2.0f / (exp_lanes(2.0f * x) + 1.0f);
}

OUTRIDER_INLINE Lanes sigmoid_lanes(const Lanes& x) { return 1.0f / (exp_lanes(-x) + 1.0f); }

// Abramowitz and Stegun, 7.1.26: error at most 1.5e-7.
OUTRIDER_INLINE Lanes erf_lanes(const Lanes& x) {
  const Lanes size = abs_lanes(x);
  const Lanes t = 1.0f / (1.0f + 0.3275911f * size);
  Lanes p = broadcast(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Lanes y = 1.0f - p * t * exp_lanes(-size * size);
  return with_sign_of(x, y);
}

}  // namespace outrider
