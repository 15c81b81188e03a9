// A file mapped to memory, read-only: processes that map the same one share its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace outrider {

class MappedFile {
 public:
  // Throws std::system_error.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  std::size_t size() const { return size_; }

  // XXH64 of some bytes of the file. On Linux their pages are released after reading.
  std::uint64_t checksum(std::span<const unsigned char> bytes) const;

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;
  // Releases the pages of the first kPiece bytes from this process; they stay in the page cache.
  void release(std::span<const unsigned char> bytes) const;

  const void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace outrider
