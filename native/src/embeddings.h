// A table of token embeddings, in the smallest type of numbers that holds them exactly.
#pragma once

#include "packed_weights.h"

namespace outrider {

class Embeddings {
 public:
  Embeddings() = default;
  Embeddings(PackedWeights& weights, const std::string& name, int words, int width)
      : section_(weights.table(name, {words, width})), width_(static_cast<std::size_t>(width)) {}

  // Writes the embedding of a token, times `scale`.
  void read(int token, float scale, float* out) const {
    const std::size_t row = width_ * size_of(section_.type);
    widen(section_.bytes.data() + static_cast<std::size_t>(token) * row, section_.type, width_, out);
    for (std::size_t k = 0; k < width_; ++k) out[k] *= scale;
  }
  std::size_t bytes() const { return section_.bytes.size(); }

 private:
  PackedSection section_;
  std::size_t width_ = 0;
};

}  // namespace outrider
