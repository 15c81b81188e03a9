// The named arrays a model is built from; they are only read while it is built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace outrider {

// Storage types in memory and in a packed file. A bfloat16 is the upper half of a float32.
enum class NumberType : std::uint32_t { float32, float16, bfloat16, int8, int32 };

constexpr int kNumberTypes = 5;

// Types of weights other than int8 with scales.
constexpr bool is_float(NumberType type) { return type <= NumberType::bfloat16; }

constexpr std::size_t size_of(NumberType type) {
  if (type == NumberType::int8) return 1;
  return type == NumberType::float32 || type == NumberType::int32 ? 4 : 2;
}

std::size_t size_of(const std::vector<int>& shape);

// Converts `count` unaligned numbers to float32, exactly.
void widen(const void* numbers, NumberType type, std::size_t count, float* out);
// Converts from float32 and truncates bits that do not fit.
void narrow(const float* numbers, std::size_t count, NumberType type, void* out);

// An array of the caller, possibly in a mapped file.
struct Array {
  std::string name;
  const void* data = nullptr;
  NumberType type = NumberType::float32;
  std::vector<int> shape;
  std::vector<float> scales = {};  // of int8, one for each row

  // Writes the numbers from `begin` as float32 and returns their largest magnitude. Throws if a
  // number is not finite.
  float read(std::size_t begin, std::size_t count, float* out) const;
  // Copies a row of int8 unchanged and returns its scale. Throws if the scale is not finite or a
  // byte is -128, which some instruction sets cannot negate.
  float read_bytes(std::size_t row, std::int8_t* out) const;
  // The smallest type that represents every number exactly; int8 stays int8. Throws if a number is
  // not finite.
  NumberType exact_type() const;
};

class Weights {
 public:
  void insert(Array array);

  bool has(const std::string& name) const { return arrays_.count(name) != 0; }

  // The array of this name; throws std::invalid_argument if it is missing or of another shape.
  const Array& get(const std::string& name, const std::vector<int>& shape) const;
  // Makes `name` an alias of `other` unless an array of this name exists.
  void tie(const std::string& name, const std::string& other);

 private:
  std::unordered_map<std::string, Array> arrays_;
};

}  // namespace outrider
