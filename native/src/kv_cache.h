// The KV cache of one sequence: keys and values of every layer and head. Recurrent layers store
// their states as values and have no keys.
//
// Keys are stored in blocks of 16 positions, [block][width][16], for vector instructions. Positions
// beyond the sequence's length are unused, so truncating a sequence is free.
#pragma once

#include "kernel/kernel.h"
#include "memory.h"

#include <cstring>

namespace outrider {

class KvCache {
 public:
  KvCache() = default;
  KvCache(int layers, int heads, int width, int capacity, std::shared_ptr<BufferPool> pool,
          bool keyed = true)
      : keyed_(keyed),
        layers_(layers),
        heads_(heads),
        width_(width),
        capacity_(round_up(capacity, kPanel)),
        data_(std::move(pool), size()) {}

  std::size_t bytes() const { return size() * sizeof(float); }

  float* keys(int layer, int head) { return data_.data() + start(layer, head); }
  const float* keys(int layer, int head) const { return data_.data() + start(layer, head); }
  float* values(int layer, int head) { return keys(layer, head) + key_part(); }
  const float* values(int layer, int head) const { return keys(layer, head) + key_part(); }

  void write(int layer, int head, int position, const float* key, const float* value) {
    float* block =
        keys(layer, head) + static_cast<std::ptrdiff_t>(position / kPanel) * kPanel * width_;
    // Whole blocks are multiplied; uninitialised memory may contain slow denormals or NaN.
    if (position % kPanel == 0)
      std::memset(block, 0, static_cast<std::size_t>(kPanel * width_) * sizeof(float));
    for (int k = 0; k < width_; ++k) block[k * kPanel + position % kPanel] = key[k];
    std::memcpy(values(layer, head) + static_cast<std::ptrdiff_t>(position) * width_, value,
                static_cast<std::size_t>(width_) * sizeof(float));
  }

  // The state of a recurrent layer after the token at a position.
  float* state(int layer, int head, int position) {
    return values(layer, head) + static_cast<std::ptrdiff_t>(position) * width_;
  }

  // A copy of the first `length` positions.
  KvCache copy(int length) const {
    KvCache copied(layers_, heads_, width_, capacity_, data_.pool(), keyed_);
    const std::size_t used =
        static_cast<std::size_t>(round_up(length, kPanel)) * static_cast<std::size_t>(width_);
    if (used == 0) return copied;  // there may be no memory
    for (int layer = 0; layer < layers_; ++layer)
      for (int head = 0; head < heads_; ++head) {
        if (keyed_) std::memcpy(copied.keys(layer, head), keys(layer, head), used * sizeof(float));
        std::memcpy(copied.values(layer, head), values(layer, head), used * sizeof(float));
      }
    return copied;
  }

 private:
  std::size_t part() const {
    return static_cast<std::size_t>(capacity_) * static_cast<std::size_t>(width_);
  }
  std::size_t key_part() const { return keyed_ ? part() : 0; }
  std::size_t size() const {
    return (key_part() + part()) * static_cast<std::size_t>(layers_) *
           static_cast<std::size_t>(heads_);
  }
  std::size_t start(int layer, int head) const {
    return static_cast<std::size_t>(layer * heads_ + head) * (key_part() + part());
  }

  bool keyed_ = true;
  int layers_ = 0, heads_ = 0, width_ = 0, capacity_ = 0;
  PooledBuffer data_;
};

}  // namespace outrider
