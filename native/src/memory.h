// Memory whose start suits the widest vectors, and whose contents are left as they come.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace outrider {

constexpr int round_up(int n, int step) { return (n + step - 1) / step * step; }

constexpr std::size_t kBufferAlign = 64;

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

  // Makes room for `size` numbers; what was there may be gone.
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

}  // namespace outrider
