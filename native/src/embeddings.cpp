#include "embeddings.h"

#include <cstring>
#include <vector>

namespace outrider {

Embeddings::Embeddings(const Array& table)
    : type_(table.type),
      width_(static_cast<std::size_t>(table.shape[1])),
      rows_(table.size() * size_of(table.type)) {
  std::vector<float> row(width_);
  for (std::size_t begin = 0; begin < table.size(); begin += width_)
    table.read(begin, width_, row.data());  // which names what is not finite
  std::memcpy(rows_.data(), table.data, rows_.size());
}

void Embeddings::read(int token, float scale, float* out) const {
  const std::size_t begin = static_cast<std::size_t>(token) * width_;
  widen(rows_.data() + begin * size_of(type_), type_, width_, out);
  for (std::size_t k = 0; k < width_; ++k) out[k] *= scale;
}

}  // namespace outrider
