#include "mapped_file.h"

#include "checksum.h"

#include <algorithm>
#include <limits>
#include <system_error>

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#endif

namespace outrider {

#if defined(_WIN32)

namespace {

[[noreturn]] void fail() {
  throw std::system_error(static_cast<int>(GetLastError()), std::system_category(), "map");
}

struct Handle {
  HANDLE value;
  ~Handle() {
    if (value != nullptr && value != INVALID_HANDLE_VALUE) CloseHandle(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Handle file{CreateFileW(path.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE,
                                nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr)};
  LARGE_INTEGER size;
  if (file.value == INVALID_HANDLE_VALUE || !GetFileSizeEx(file.value, &size)) fail();
  if (size.QuadPart == 0) return;  // an empty file cannot be mapped
  const Handle mapping{CreateFileMappingW(file.value, nullptr, PAGE_READONLY, 0, 0, nullptr)};
  if (mapping.value == nullptr) fail();
  data_ = MapViewOfFile(mapping.value, FILE_MAP_READ, 0, 0, 0);
  if (data_ == nullptr) fail();
  size_ = static_cast<std::size_t>(size.QuadPart);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) UnmapViewOfFile(data_);
}

#else

namespace {

[[noreturn]] void fail(int code) { throw std::system_error(code, std::generic_category(), "map"); }

struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat about;
  if (file.value < 0 || fstat(file.value, &about) != 0) fail(errno);
  if (!S_ISREG(about.st_mode)) fail(EINVAL);
  if (about.st_size == 0) return;  // an empty file cannot be mapped
  const auto size = static_cast<std::size_t>(about.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.value, 0);
  if (data == MAP_FAILED) fail(errno);
  data_ = data;
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<void*>(data_), size_);
}

#endif

std::uint64_t MappedFile::checksum(std::span<const unsigned char> bytes) const {
  Xxh64 hash;
  for (; bytes.size() > kPiece; bytes = bytes.subspan(kPiece)) {
    std::span<const unsigned char> piece = bytes.first(kPiece);
    hash.update(piece);
    release(bytes);
  }
  const std::uint64_t found = hash.finish(bytes);
  release(bytes);
  return found;
}

void MappedFile::release(std::span<const unsigned char> piece) const {
#if defined(__linux__)
  if (size_ == 0) return;
  const std::size_t begin = static_cast<std::size_t>(piece.data() - data()) / kPiece * kPiece;
  madvise(const_cast<unsigned char*>(data()) + begin, std::min(2 * kPiece, size_ - begin),
          MADV_DONTNEED);
#else
  static_cast<void>(piece);
#endif
}

}  // namespace outrider
