#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace outrider {
namespace {

constexpr std::int32_t kInfinity = 0x7f800000;  // bits of a float32

// 2^112, the difference of the exponent biases of float32 and float16. One multiplication converts
// between them, including denormals.
constexpr float kHalfScale = 5192296858534827628530496329220096.0f;

float widen_half(std::uint16_t half) {
  std::uint32_t bits = (half & 0x7fffu) << 13;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  out *= kHalfScale;
  std::memcpy(&bits, &out, sizeof out);
  if ((half & 0x7c00u) == 0x7c00u) bits = kInfinity | (half & 0x3ffu) << 13;
  bits |= (half & 0x8000u) << 16;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

std::uint16_t narrow_half(float x) {
  std::uint32_t sign, bits;
  std::memcpy(&sign, &x, sizeof sign);
  x *= 1.0f / kHalfScale;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((sign >> 16 & 0x8000u) | (bits >> 13 & 0x7fffu));
}

std::string describe(const std::vector<int>& shape) {
  std::string text;
  for (int n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return text;
}

}  // namespace

void widen(const void* numbers, NumberType type, std::size_t count, float* out) {
  if (type == NumberType::float32) {
    std::memcpy(out, numbers, count * sizeof(float));
    return;
  }
  if (type == NumberType::int8) {
    const auto* bytes = static_cast<const std::int8_t*>(numbers);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(bytes[i]);
    return;
  }
  const auto* halves = static_cast<const unsigned char*>(numbers);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, halves + 2 * i, sizeof half);
    if (type == NumberType::float16) {
      out[i] = widen_half(half);
    } else {
      const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
      std::memcpy(out + i, &bits, sizeof bits);
    }
  }
}

void narrow(const float* numbers, std::size_t count, NumberType type, void* out) {
  if (type == NumberType::float32) {
    std::memcpy(out, numbers, count * sizeof(float));
    return;
  }
  auto* halves = static_cast<unsigned char*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    if (type == NumberType::float16) {
      half = narrow_half(numbers[i]);
    } else {
      std::uint32_t bits;
      std::memcpy(&bits, numbers + i, sizeof bits);
      half = static_cast<std::uint16_t>(bits >> 16);
    }
    std::memcpy(halves + 2 * i, &half, sizeof half);
  }
}

std::size_t size_of(const std::vector<int>& shape) {
  std::size_t product = 1;
  for (int n : shape) product *= static_cast<std::size_t>(n);
  return product;
}

float Array::read(std::size_t begin, std::size_t count, float* out) const {
  widen(static_cast<const unsigned char*>(data) + begin * size_of(type), type, count, out);
  if (!scales.empty()) {
    const auto width = static_cast<std::size_t>(shape.back());
    for (std::size_t i = 0; i < count; ++i) out[i] *= scales[(begin + i) / width];
  }
  std::int32_t most = 0;  // magnitudes compare like their bits
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, out + i, sizeof bits);
    most = std::max(most, bits & 0x7fffffff);
  }
  if (most >= kInfinity)
    throw std::invalid_argument("'" + name + "' holds numbers that are not finite");
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  return largest;
}

float Array::read_bytes(std::size_t row, std::int8_t* out) const {
  const auto width = static_cast<std::size_t>(shape.back());
  std::memcpy(out, static_cast<const std::int8_t*>(data) + row * width, width);
  if (!std::isfinite(scales[row]))
    throw std::invalid_argument("'" + name + "' holds numbers that are not finite");
  if (std::find(out, out + width, std::int8_t{-128}) != out + width)
    throw std::invalid_argument("'" + name + "' holds -128, expected -127 to 127");
  return scales[row];
}

NumberType Array::exact_type() const {
  if (type == NumberType::int8) return type;
  const std::size_t row = static_cast<std::size_t>(shape.back()), all = size_of(shape);
  std::vector<float> numbers(row), again(row);
  std::vector<std::uint16_t> halves(row);
  const auto fits = [&](NumberType narrower) {
    narrow(numbers.data(), row, narrower, halves.data());
    widen(halves.data(), narrower, row, again.data());
    return std::memcmp(numbers.data(), again.data(), row * sizeof(float)) == 0;
  };
  bool brain = true, half = true;
  for (std::size_t at = 0; at < all; at += row) {
    read(at, row, numbers.data());
    brain = brain && fits(NumberType::bfloat16);
    half = half && fits(NumberType::float16);
  }
  if (brain) return NumberType::bfloat16;
  return half ? NumberType::float16 : NumberType::float32;
}

void Weights::insert(Array array) {
  std::string name = array.name;
  arrays_.emplace(std::move(name), std::move(array));
}

const Array& Weights::get(const std::string& name, const std::vector<int>& shape) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) throw std::invalid_argument("the weights lack '" + name + "'");
  if (found->second.shape != shape)
    throw std::invalid_argument("'" + name + "' is " + describe(found->second.shape) +
                                ", expected " + describe(shape));
  return found->second;
}

void Weights::tie(const std::string& name, const std::string& other) {
  if (const auto found = arrays_.find(other); found != arrays_.end()) {
    Array same = found->second;
    arrays_.emplace(name, std::move(same));
  }
}

}  // namespace outrider
