// All 16-bit numbers against their definition, and the weights that a model is built from.
#include "check.h"
#include "checks.h"
#include "weights.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace outrider {
namespace {

// (-1)^s 2^(e - bias) (1 + m / 2^bits), or with e = 0, 2^(1 - bias) m / 2^bits.
double value_of(unsigned half, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(half >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(half) & ((1 << mantissa_bits) - 1);
  const double sign = half >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
}

void check_halves(NumberType type, int mantissa_bits) {
  std::vector<unsigned char> bytes(1 + 2 * 65536);  // unaligned by one byte
  for (unsigned half = 0; half < 65536; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    std::memcpy(bytes.data() + 1 + 2 * half, &bits, sizeof bits);
  }
  std::vector<float> found(65536);
  widen(bytes.data() + 1, type, found.size(), found.data());
  for (unsigned half = 0; half < 65536; ++half) {
    const double expected = value_of(half, mantissa_bits);
    CHECK(std::isnan(expected) ? std::isnan(found[half])
                               : found[half] == static_cast<float>(expected) &&
                                     std::signbit(found[half]) == std::signbit(expected));
    const Array one{"one", bytes.data() + 1, type, {65536}};
    if (!std::isnan(expected)) {
      std::uint16_t back;
      narrow(&found[half], 1, type, &back);
      CHECK(back == half || std::isinf(expected));
    }
    float read = 0.0f;
    CHECK(refuses([&] { one.read(half, 1, &read); }) == !std::isfinite(expected));
  }
}

void check_exact_types() {
  const auto type_of = [](std::vector<float> numbers) {
    return Array{"a", numbers.data(), NumberType::float32, {1, static_cast<int>(numbers.size())}}
        .exact_type();
  };
  CHECK(type_of({1.0f, -2.5f, 0.0f, 0x1p-130f, 0x1.fep127f}) == NumberType::bfloat16);
  CHECK(type_of({0x1.ffcp15f, 0x1p-24f, -0x1.ffcp-14f}) == NumberType::float16);
  CHECK(type_of({0x1.ffcp15f, 0x1p-130f}) == NumberType::float32);
  CHECK(type_of({0x1.ffcp15f, 0x1p17f}) == NumberType::float32);
  CHECK(type_of({0x1.ffcp15f, 0x1p-25f}) == NumberType::float32);
  CHECK(type_of({0x1.ffep0f}) == NumberType::float32);
}

void check_bytes() {
  const std::int8_t bytes[] = {127, -127, 0, 3, -128, 5};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Array array{"a", bytes, NumberType::int8, {3, 2}, {0.5f, nan, -2.0f}};
  float wide[2];
  CHECK(array.read(1, 1, wide) == 63.5f && wide[0] == -63.5f);
  CHECK(array.exact_type() == NumberType::int8);
  std::int8_t row[2];
  CHECK(array.read_bytes(0, row) == 0.5f && row[0] == 127 && row[1] == -127);
  CHECK(refuses([&] { array.read_bytes(1, row); }));
  CHECK(refuses([&] { array.read_bytes(2, row); }));
}

}  // namespace

void check_weights() {
  check_bytes();
  check_exact_types();
  check_halves(NumberType::float16, 10);
  check_halves(NumberType::bfloat16, 7);
}

}  // namespace outrider
