// Tables of positions, computed once for texts up to a length: sines and cosines, and the biases of
// relative positions.
#pragma once

#include "fork.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace outrider {

// f_k = 10000^(-2k/width), the frequencies of sinusoidal positions of this width.
inline std::vector<double> sinusoidal_frequencies(int width) {
  std::vector<double> frequencies;
  for (int k = 0; k < width / 2; ++k) frequencies.push_back(std::pow(10000.0, -2.0 * k / width));
  return frequencies;
}

// Row p holds sin(p f_k) for all frequencies, then cos(p f_k), computed in double precision.
class SineTable {
 public:
  SineTable(const std::vector<double>& frequencies, int length)
      : width_(2 * static_cast<int>(frequencies.size())),
        length_(length),
        rows_(static_cast<std::size_t>(width_) * length) {
    const int half = width_ / 2, width = width_;
    for (int k = 0; k < half; ++k) {
      const double frequency = frequencies[static_cast<std::size_t>(k)];
      for (int p = 0; p < length; ++p) {
        rows_[static_cast<std::size_t>(p) * width + k] =
            static_cast<float>(std::sin(p * frequency));
        rows_[static_cast<std::size_t>(p) * width + half + k] =
            static_cast<float>(std::cos(p * frequency));
      }
    }
  }

  int length() const { return length_; }
  const float* row(int position) const {
    return rows_.data() + static_cast<std::size_t>(position) * width_;
  }
  const float* sines(int position) const { return row(position); }
  const float* cosines(int position) const { return row(position) + width_ / 2; }

 private:
  int width_, length_;
  std::vector<float> rows_;
};

// Buckets of T5's relative positions (equation in nn/position/bucketed.py): a distance is in bucket
// n if n of `edges` are at most the distance.
struct Buckets {
  std::vector<int> edges;  // ascending
  bool two_sided = false;  // separate buckets for keys after the query

  int side() const { return static_cast<int>(edges.size()) + 1; }
  int count() const { return two_sided ? 2 * side() : side(); }
  int find(int offset) const {  // offset: key minus query
    const int distance = two_sided ? std::abs(offset) : std::max(0, -offset);
    const auto above = std::upper_bound(edges.begin(), edges.end(), distance);
    const int bucket = static_cast<int>(above - edges.begin());
    return two_sided && offset > 0 ? side() + bucket : bucket;
  }
};

// What is added to attention scores: for every head, the bias of each offset in texts up to
// `length`.
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
  // The biases of a query at `position` for keys 0, 1, ...
  const float* row(int head, int position) const {
    return rows_.data() + static_cast<std::size_t>(head) * stride() +
           static_cast<std::size_t>(length_ - 1 - position);
  }

 private:
  std::size_t stride() const { return 2 * static_cast<std::size_t>(length_) - 1; }

  int length_;
  std::vector<float> rows_;
};

// Caches the longest table. States share the tables they were opened with, which stay valid.
template <typename Table>
class TableCache {
 public:
  TableCache() = default;  // returns null
  explicit TableCache(std::function<Table(int length)> compute) : compute_(std::move(compute)) {}

  std::shared_ptr<const Table> at_least(int length) {
    if (!compute_) return nullptr;
    if (std::shared_ptr<const Table> table = longest(); table && table->length() >= length)
      return table;
    int size = 512;
    while (size < length) size *= 2;
    auto table = std::make_shared<const Table>(compute_(size));
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    if (!longest_ || longest_->length() < size) longest_ = table;
    return table;
  }

 private:
  std::shared_ptr<const Table> longest() const {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    return longest_;
  }

  std::function<Table(int length)> compute_;
  std::shared_ptr<const Table> longest_;
};

}  // namespace outrider
