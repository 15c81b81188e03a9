// Sines and cosines of positions, computed in double precision and kept.
#pragma once

#include "fork.h"

#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

namespace outrider {

// f_k = 10000^(-2k/width), the usual frequencies of codes so wide.
inline std::vector<double> usual_frequencies(int width) {
  std::vector<double> found;
  for (int k = 0; k < width / 2; ++k) found.push_back(std::pow(10000.0, -2.0 * k / width));
  return found;
}

// Row p holds sin(p f_k) for all frequencies, then cos(p f_k).
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

// Hands out a table that is long enough; whoever holds an older one keeps it.
class SineTables {
 public:
  explicit SineTables(std::vector<double> frequencies) : frequencies_(std::move(frequencies)) {}

  std::shared_ptr<const SineTable> at_least(int length) {
    if (std::shared_ptr<const SineTable> table = newest(); table && table->length() >= length)
      return table;
    int size = 512;
    while (size < length) size *= 2;
    auto table = std::make_shared<const SineTable>(frequencies_, size);
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    if (!table_ || table_->length() < size) table_ = table;
    return table;
  }

 private:
  std::shared_ptr<const SineTable> newest() const {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    return table_;
  }

  std::vector<double> frequencies_;
  std::shared_ptr<const SineTable> table_;
};

}  // namespace outrider
