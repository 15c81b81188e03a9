// A table of token embeddings, in the smallest type of numbers that holds them exactly; what comes
// as int8 stays so.
#pragma once

#include "packed_weights.h"

namespace outrider {

class Embeddings {
 public:
  Embeddings() = default;
  Embeddings(PackedWeights& weights, const std::string& name, int words, int width)
      : table_(weights.table(name, {words, width})), width_(static_cast<std::size_t>(width)) {}

  // Writes the embedding of a token, times `scale`.
  void read(int token, float scale, float* out) const {
    const auto& [type, bytes] = table_.numbers;
    const auto row = static_cast<std::size_t>(token);
    widen(bytes.data() + row * width_ * size_of(type), type, width_, out);
    if (type == NumberType::int8)
      for (std::size_t k = 0; k < width_; ++k) out[k] *= table_.scales[row];
    for (std::size_t k = 0; k < width_; ++k) out[k] *= scale;
  }
  std::size_t bytes() const { return table_.numbers.bytes.size() + table_.scales.size_bytes(); }

 private:
  PackedTable table_;
  std::size_t width_ = 0;
};

}  // namespace outrider
