// A table of token embeddings, kept in the type of numbers it came in.
#pragma once

#include "memory.h"
#include "weights.h"

namespace outrider {

class Embeddings {
 public:
  Embeddings() = default;
  // `table` is [words][width].
  explicit Embeddings(const Array& table);

  // Writes the embedding of a token, times `scale`.
  void read(int token, float scale, float* out) const;
  std::size_t bytes() const { return rows_.size(); }

 private:
  NumberType type_ = NumberType::float32;
  std::size_t width_ = 0;
  Buffer<unsigned char> rows_;
};

}  // namespace outrider
