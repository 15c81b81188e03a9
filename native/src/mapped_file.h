// A file mapped to memory, read-only: processes that map the same one share its pages.
#pragma once

#include <cstddef>
#include <filesystem>

namespace outrider {

class MappedFile {
 public:
  // Throws std::system_error where the system does not give it.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  std::size_t size() const { return size_; }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace outrider
