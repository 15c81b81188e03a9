// What attention remembers of one text: keys and values of every layer and head.
//
// Keys lie in blocks of 16 places, [block][width][16], so that one instruction meets 16 of them.
// What lies beyond a text's length means nothing; forgetting tokens is therefore free.
#pragma once

#include "kernel/kernel.h"
#include "recycler.h"

#include <cstring>

namespace outrider {

class KeyValues {
 public:
  KeyValues() = default;
  KeyValues(int layers, int heads, int width, int capacity, std::shared_ptr<Recycler> memory)
      : layers_(layers),
        heads_(heads),
        width_(width),
        capacity_(round_up(capacity, kPanel)),
        data_(std::move(memory), size()) {}

  std::size_t bytes() const { return size() * sizeof(float); }

  float* keys(int layer, int head) { return data_.data() + start(layer, head); }
  const float* keys(int layer, int head) const { return data_.data() + start(layer, head); }
  float* values(int layer, int head) { return keys(layer, head) + part(); }
  const float* values(int layer, int head) const { return keys(layer, head) + part(); }

  void write(int layer, int head, int place, const float* key, const float* value) {
    float* block =
        keys(layer, head) + static_cast<std::ptrdiff_t>(place / kPanel) * kPanel * width_;
    // Whole blocks are multiplied. Left as it came, memory holds numbers too small to be fast.
    if (place % kPanel == 0)
      std::memset(block, 0, static_cast<std::size_t>(kPanel * width_) * sizeof(float));
    for (int k = 0; k < width_; ++k) block[k * kPanel + place % kPanel] = key[k];
    std::memcpy(values(layer, head) + static_cast<std::ptrdiff_t>(place) * width_, value,
                static_cast<std::size_t>(width_) * sizeof(float));
  }

  // A copy of the first `length` places.
  KeyValues copy(int length) const {
    KeyValues twin(layers_, heads_, width_, capacity_, data_.from());
    const std::size_t used =
        static_cast<std::size_t>(round_up(length, kPanel)) * static_cast<std::size_t>(width_);
    if (used == 0) return twin;  // and there may be no memory at all
    for (int layer = 0; layer < layers_; ++layer)
      for (int head = 0; head < heads_; ++head) {
        std::memcpy(twin.keys(layer, head), keys(layer, head), used * sizeof(float));
        std::memcpy(twin.values(layer, head), values(layer, head), used * sizeof(float));
      }
    return twin;
  }

 private:
  std::size_t part() const {
    return static_cast<std::size_t>(capacity_) * static_cast<std::size_t>(width_);
  }
  std::size_t size() const {
    return 2 * part() * static_cast<std::size_t>(layers_) * static_cast<std::size_t>(heads_);
  }
  std::size_t start(int layer, int head) const {
    return static_cast<std::size_t>(layer * heads_ + head) * 2 * part();
  }

  int layers_ = 0, heads_ = 0, width_ = 0, capacity_ = 0;
  Loan data_;
};

}  // namespace outrider
