// What is added to the scores of self-attention, by how far apart two tokens stand: the bucketed
// relative positions of T5 (see nn/position/bucketed.py for the equation).
#pragma once

#include "fork.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace outrider {

// The buckets of a stack: a distance is in bucket n if n of `edges` are not above it.
struct Buckets {
  std::vector<int> edges;  // in order
  bool two_sided = false;  // as many buckets again for keys that come after the query

  int side() const { return static_cast<int>(edges.size()) + 1; }
  int count() const { return two_sided ? 2 * side() : side(); }
  int find(int offset) const {  // offset: key minus query
    const int distance = two_sided ? std::abs(offset) : std::max(0, -offset);
    const auto above = std::upper_bound(edges.begin(), edges.end(), distance);
    const int near = static_cast<int>(above - edges.begin());
    return two_sided && offset > 0 ? side() + near : near;
  }
};

// The bias of every head for all offsets of texts up to `length`.
class OffsetBias {
 public:
  // `table` is [buckets][heads].
  OffsetBias(const Buckets& buckets, std::span<const float> table, int heads, int length)
      : length_(length), rows_(static_cast<std::size_t>(heads) * stride()) {
    for (int offset = 1 - length; offset < length; ++offset) {
      const int bucket = buckets.find(offset);
      for (int head = 0; head < heads; ++head)
        rows_[static_cast<std::size_t>(head) * stride() +
              static_cast<std::size_t>(offset + length - 1)] =
            table[static_cast<std::size_t>(bucket * heads + head)];
    }
  }

  int length() const { return length_; }
  // What a query at `position` adds to the score of key 0, and behind it those of the keys after.
  const float* row(int head, int position) const {
    return rows_.data() + static_cast<std::size_t>(head) * stride() +
           static_cast<std::size_t>(length_ - 1 - position);
  }

 private:
  std::size_t stride() const { return 2 * static_cast<std::size_t>(length_) - 1; }

  int length_;
  std::vector<float> rows_;
};

// Hands out biases that reach far enough; whoever holds older ones keeps them.
class OffsetBiases {
 public:
  OffsetBiases() = default;
  OffsetBiases(Buckets buckets, std::span<const float> table, int heads)
      : buckets_(std::move(buckets)), table_(table), heads_(heads) {}

  // Null where the stack has none.
  std::shared_ptr<const OffsetBias> at_least(int length) {
    if (heads_ == 0) return nullptr;
    if (std::shared_ptr<const OffsetBias> bias = newest(); bias && bias->length() >= length)
      return bias;
    int size = 512;
    while (size < length) size *= 2;
    auto bias = std::make_shared<const OffsetBias>(buckets_, table_, heads_, size);
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    if (!newest_ || newest_->length() < size) newest_ = bias;
    return bias;
  }

 private:
  std::shared_ptr<const OffsetBias> newest() const {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    return newest_;
  }

  Buckets buckets_;
  std::span<const float> table_;
  int heads_ = 0;
  std::shared_ptr<const OffsetBias> newest_;
};

}  // namespace outrider
