// Buffers that were released, for the next caller: a fresh page from the system costs more than the
// work that is done in it.
#pragma once

#include "fork.h"
#include "memory.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace outrider {

class BufferPool {
 public:
  Buffer<float> acquire(std::size_t size) {
    {
      const std::lock_guard<std::mutex> lock(fork_safe_mutex());
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

  void release(Buffer<float> buffer) noexcept {
    if (buffer.size() > kMaxIdle) return;
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    // The oldest go: sizes that nobody has asked for since.
    while (held_ + buffer.size() > kMaxIdle || idle_.size() == kMaxBuffers) {
      held_ -= idle_.front().size();
      idle_.erase(idle_.begin());
    }
    held_ += buffer.size();
    idle_.push_back(std::move(buffer));
  }

  // Numbers that idle buffers hold.
  std::size_t held() const {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    return held_;
  }

  BufferPool() {
    fork_safe_mutex();  // whose first use may fail, where `release` may not
    idle_.reserve(kMaxBuffers);
  }

 private:
  static constexpr std::size_t kStep = 1 << 12;      // sizes are rounded, so that they meet again
  static constexpr std::size_t kMaxIdle = 16 << 20;  // numbers kept, 64 MiB
  static constexpr std::size_t kMaxBuffers = 1024;

  std::vector<Buffer<float>> idle_;
  std::size_t held_ = 0;
};

// A buffer that its destructor returns to the pool.
class PooledBuffer {
 public:
  PooledBuffer() = default;
  PooledBuffer(std::shared_ptr<BufferPool> pool, std::size_t size)
      : pool_(std::move(pool)), buffer_(size == 0 ? Buffer<float>() : pool_->acquire(size)) {}
  PooledBuffer(PooledBuffer&& other) noexcept = default;
  PooledBuffer& operator=(PooledBuffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~PooledBuffer() {
    if (pool_ && buffer_.size() > 0) pool_->release(std::move(buffer_));
  }

  float* data() { return buffer_.data(); }
  const float* data() const { return buffer_.data(); }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  std::shared_ptr<BufferPool> pool_;
  Buffer<float> buffer_;
};

}  // namespace outrider
