// The packed weights of a model: sections of numbers, by name.
//
// Each section is packed from arrays on first use, or mapped from a file that `save` wrote. The
// layout is the same for all instruction sets.
#pragma once

#include "mapped_file.h"
#include "memory.h"
#include "weights.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace outrider {

template <typename T>
constexpr NumberType kTypeOf = NumberType::float32;
template <>
inline constexpr NumberType kTypeOf<std::int8_t> = NumberType::int8;
template <>
inline constexpr NumberType kTypeOf<std::int32_t> = NumberType::int32;

struct PackedSection {
  NumberType type = NumberType::float32;
  std::span<const unsigned char> bytes;  // aligned for the widest vectors
};

// Rows of numbers; int8 rows have scales.
struct PackedTable {
  PackedSection numbers;
  std::span<const float> scales;
};

class PackedWeights {
 public:
  // Packs `arrays`, whose numbers must stay valid until the model is built.
  explicit PackedWeights(Weights arrays) : arrays_(std::move(arrays)) {}
  // Maps a file. Throws std::system_error if it cannot be read, and std::invalid_argument if its
  // sizes or the checksum of its header are wrong.
  explicit PackedWeights(const std::filesystem::path& path);
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Verifies the checksums of a mapped file, once; throws std::invalid_argument.
  void verify();

  // The arrays to pack; null after packing, and for a mapped file.
  Weights* arrays() { return arrays_ ? &*arrays_ : nullptr; }
  void release_arrays() {
    if (arrays_) arrays_.reset();
  }

  bool mapped() const { return file_ != nullptr; }
  const std::string& about() const { return about_; }
  bool has(const std::string& name) const {
    return arrays_ ? arrays_->has(name) : sections_.count(name) != 0;
  }
  std::size_t bytes() const;

  // The section of this name with `size` numbers; packed by fill(arrays, zeroed numbers).
  template <typename T, typename Fill>
  std::span<const T> get(const std::string& name, std::size_t size, const Fill& fill) {
    if (const PackedSection* found = find(name, kTypeOf<T>, size * sizeof(T)))
      return numbers<T>(*found);
    Buffer<unsigned char> made = zeros(name, size * sizeof(T));
    fill(static_cast<const Weights&>(*arrays_), reinterpret_cast<T*>(made.data()));
    return numbers<T>(insert(name, kTypeOf<T>, std::move(made)));
  }

  // An array of this name and shape as float32.
  std::span<const float> floats(const std::string& name, const std::vector<int>& shape);
  // An array of this name and shape, in the smallest type that represents it exactly.
  PackedTable table(const std::string& name, const std::vector<int>& shape);

  // Writes all sections and `about`, a text of the caller that identifies the model.
  void save(const std::filesystem::path& path, const std::string& about) const;

 private:
  template <typename T>
  static std::span<const T> numbers(const PackedSection& section) {
    return {reinterpret_cast<const T*>(section.bytes.data()), section.bytes.size() / sizeof(T)};
  }
  const PackedSection& table_numbers(const std::string& name, const std::vector<int>& shape);
  // The section, or null; throws if it has another type or size.
  const PackedSection* find(const std::string& name, NumberType type, std::size_t bytes) const;
  Buffer<unsigned char> zeros(const std::string& name, std::size_t bytes) const;
  const PackedSection& insert(const std::string& name, NumberType type,
                              Buffer<unsigned char> bytes);
  void read_sections();

  struct Sum {
    std::span<const unsigned char> bytes;
    std::uint64_t checksum;
  };

  std::optional<Weights> arrays_;
  std::unique_ptr<MappedFile> file_;
  std::vector<Sum> sums_;  // of the sections of a mapped file
  std::atomic<bool> verified_ = false;
  std::string about_;
  std::vector<std::string> names_;  // in the order in which they are saved
  std::unordered_map<std::string, PackedSection> sections_;
  std::vector<Buffer<unsigned char>> owned_;
};

}  // namespace outrider
