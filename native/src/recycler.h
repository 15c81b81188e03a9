// Memory that has been given back, for whoever comes next: a page that the system hands out anew
// costs more than the work that is done in it.
#pragma once

#include "fork.h"
#include "memory.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace outrider {

class Recycler {
 public:
  Buffer<float> take(std::size_t size) {
    {
      const std::lock_guard<std::mutex> lock(records());
      auto best = idle_.end();
      for (auto one = idle_.begin(); one != idle_.end(); ++one)
        if (one->size() >= size && one->size() <= 2 * size + kStep &&
            (best == idle_.end() || one->size() < best->size()))
          best = one;
      if (best != idle_.end()) {
        Buffer<float> found = std::move(*best);
        idle_.erase(best);
        held_ -= found.size();
        return found;
      }
    }
    return Buffer<float>((size + kStep - 1) / kStep * kStep);
  }

  void give(Buffer<float> buffer) noexcept {
    const std::lock_guard<std::mutex> lock(records());
    if (held_ + buffer.size() > kMost || idle_.size() == idle_.capacity()) return;
    held_ += buffer.size();
    idle_.push_back(std::move(buffer));
  }

  Recycler() {
    records();  // whose first use may fail, where `give` may not
    idle_.reserve(kPieces);
  }

 private:
  static constexpr std::size_t kStep = 1 << 12;   // sizes are rounded, so that they meet again
  static constexpr std::size_t kMost = 16 << 20;  // numbers kept, 64 MiB
  static constexpr std::size_t kPieces = 1024;

  std::vector<Buffer<float>> idle_;
  std::size_t held_ = 0;
};

// A buffer that goes back by itself.
class Loan {
 public:
  Loan() = default;
  Loan(std::shared_ptr<Recycler> from, std::size_t size)
      : from_(std::move(from)), buffer_(size == 0 ? Buffer<float>() : from_->take(size)) {}
  Loan(Loan&& other) noexcept = default;
  Loan& operator=(Loan&& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~Loan() {
    if (from_ && buffer_.size() > 0) from_->give(std::move(buffer_));
  }

  float* data() { return buffer_.data(); }
  const float* data() const { return buffer_.data(); }
  const std::shared_ptr<Recycler>& from() const { return from_; }

 private:
  std::shared_ptr<Recycler> from_;
  Buffer<float> buffer_;
};

}  // namespace outrider
