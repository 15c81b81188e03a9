// XXH64 with seed 0 (xxHash specification): detects damage and changes, not forgery.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace outrider {

class Xxh64 {
 public:
  static constexpr std::size_t kStripe = 32;

  // Hashes whole stripes and leaves the remaining bytes in `bytes`.
  void update(std::span<const unsigned char>& bytes) {
    for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe), stripes_ += 1)
      for (int n = 0; n < 4; ++n) state_[n] = round(state_[n], word<std::uint64_t>(bytes, 8 * n));
  }

  // Hashes the last bytes and returns the checksum.
  std::uint64_t finish(std::span<const unsigned char> bytes) {
    update(bytes);
    std::uint64_t hash = k5;
    if (stripes_ > 0) {
      hash = std::rotl(state_[0], 1) + std::rotl(state_[1], 7) + std::rotl(state_[2], 12) +
             std::rotl(state_[3], 18);
      for (const std::uint64_t one : state_) hash = (hash ^ round(0, one)) * k1 + k4;
    }
    hash += kStripe * stripes_ + bytes.size();
    for (; bytes.size() >= 8; bytes = bytes.subspan(8))
      hash = std::rotl(hash ^ round(0, word<std::uint64_t>(bytes)), 27) * k1 + k4;
    for (; bytes.size() >= 4; bytes = bytes.subspan(4))
      hash = std::rotl(hash ^ (word<std::uint32_t>(bytes) * k1), 23) * k2 + k3;
    for (const unsigned char byte : bytes) hash = std::rotl(hash ^ (byte * k5), 11) * k1;
    hash = (hash ^ (hash >> 33)) * k2;
    hash = (hash ^ (hash >> 29)) * k3;
    return hash ^ (hash >> 32);
  }

 private:
  static constexpr std::uint64_t k1 = 0x9E3779B185EBCA87, k2 = 0xC2B2AE3D27D4EB4F,
                                 k3 = 0x165667B19E3779F9, k4 = 0x85EBCA77C2B2AE63,
                                 k5 = 0x27D4EB2F165667C5;

  template <typename T>
  static T word(std::span<const unsigned char> bytes, std::size_t at = 0) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  static std::uint64_t round(std::uint64_t state, std::uint64_t word) {
    return std::rotl(state + word * k2, 31) * k1;
  }

  std::uint64_t state_[4] = {k1 + k2, k2, 0, 0 - k1};
  std::uint64_t stripes_ = 0;
};

inline std::uint64_t xxh64(std::span<const unsigned char> bytes) { return Xxh64().finish(bytes); }

}  // namespace outrider
