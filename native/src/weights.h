// The named arrays a model is built from. They are read while it is built, and not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace outrider {

// How numbers lie in memory, and in a packed file. A bfloat16 is the upper half of a float32.
enum class NumberType : std::uint32_t { float32, float16, bfloat16, int8, int32 };

constexpr int kNumberTypes = 5;

// What weights come in, unless they are int8 with scales.
constexpr bool is_float(NumberType type) { return type <= NumberType::bfloat16; }

constexpr std::size_t size_of(NumberType type) {
  if (type == NumberType::int8) return 1;
  return type == NumberType::float32 || type == NumberType::int32 ? 4 : 2;
}

std::size_t size_of(const std::vector<int>& shape);

// Writes `count` floats or bytes, which need not be aligned, as float32: exactly.
void widen(const void* numbers, NumberType type, std::size_t count, float* out);
// The other way; what does not fit is cut off.
void narrow(const float* numbers, std::size_t count, NumberType type, void* out);

// An array of whoever builds the model, as it may lie in a file that is mapped to memory.
struct Array {
  std::string name;
  const void* data = nullptr;
  NumberType type = NumberType::float32;
  std::vector<int> shape;
  std::vector<float> scales = {};  // of int8, one a row: its numbers are bytes times this

  // Writes the numbers from `begin` on as float32 and returns the largest magnitude among them.
  // Throws where one of them is not finite.
  float read(std::size_t begin, std::size_t count, float* out) const;
  // The same bytes and scale, for int8: what is quantised already is not rounded again. Throws
  // where the scale is not finite, or a byte is -128, which not every instruction set negates.
  float read_bytes(std::size_t row, std::int8_t* out) const;
  // The smallest type that holds every number exactly: int8 for itself. Throws where one of them is not finite.
  NumberType exact_type() const;
};

class Weights {
 public:
  void insert(Array array);

  bool has(const std::string& name) const { return arrays_.count(name) != 0; }

  // The array of this name and shape; anything else is the caller's mistake, and named.
  const Array& get(const std::string& name, const std::vector<int>& shape) const;
  // Makes `name` another name of what `other` is, unless there is one of it.
  void tie(const std::string& name, const std::string& other);

 private:
  std::unordered_map<std::string, Array> arrays_;
};

}  // namespace outrider
