// Aligned, uninitialised memory, and a pool of released buffers.
#pragma once

#include "fork.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace outrider {

constexpr int round_up(int n, int step) { return (n + step - 1) / step * step; }

constexpr std::size_t kBufferAlign = 64;  // bytes of the widest vectors

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size) {
    if (size == 0) return;
    const std::size_t bytes = (size * sizeof(T) + kBufferAlign - 1) / kBufferAlign * kBufferAlign;
    data_.reset(static_cast<T*>(::operator new(bytes, std::align_val_t{kBufferAlign})));
  }

  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }

  // Grows the buffer to at least `size` elements; growing discards its contents.
  T* reserve(std::size_t size) {
    if (size > size_) *this = Buffer(size + size / 2);
    return data();
  }

 private:
  struct Free {
    void operator()(T* data) const { ::operator delete(data, std::align_val_t{kBufferAlign}); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// Reuses released buffers, because page faults on new memory cost more than the work done in it.
class BufferPool {
 public:
  BufferPool() {
    fork_safe_mutex();  // its first use may throw, `release` must not
    idle_.reserve(kMaxBuffers);
  }

  Buffer<float> acquire(std::size_t size) {
    {
      const std::lock_guard<std::mutex> lock(fork_safe_mutex());
      auto best = idle_.end();
      for (auto buffer = idle_.begin(); buffer != idle_.end(); ++buffer)
        if (buffer->size() >= size && buffer->size() <= 2 * size + kStep &&
            (best == idle_.end() || buffer->size() < best->size()))
          best = buffer;
      if (best != idle_.end()) {
        Buffer<float> buffer = std::move(*best);
        idle_.erase(best);
        idle_size_ -= buffer.size();
        return buffer;
      }
    }
    return Buffer<float>((size + kStep - 1) / kStep * kStep);
  }

  void release(Buffer<float> buffer) noexcept {
    if (buffer.size() > kMaxIdle) return;
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    while (idle_size_ + buffer.size() > kMaxIdle || idle_.size() == kMaxBuffers) {
      idle_size_ -= idle_.front().size();  // the oldest
      idle_.erase(idle_.begin());
    }
    idle_size_ += buffer.size();
    idle_.push_back(std::move(buffer));
  }

  // Floats in idle buffers.
  std::size_t idle_size() const {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    return idle_size_;
  }

 private:
  static constexpr std::size_t kStep = 1 << 12;      // sizes are rounded up to allow reuse
  static constexpr std::size_t kMaxIdle = 16 << 20;  // floats, 64 MiB
  static constexpr std::size_t kMaxBuffers = 1024;

  std::vector<Buffer<float>> idle_;
  std::size_t idle_size_ = 0;
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
