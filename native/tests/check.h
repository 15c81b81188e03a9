// Checks that report the place of a failure, and random numbers, for the tests of the core.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace outrider {

struct Tally {
  long passed = 0, failed = 0;
};

inline Tally& tally() {
  static Tally count;
  return count;
}

// Counts a check and reports the place of a failure. Called on the main thread only.
inline void check(bool holds, const char* what, const char* file, int line) {
  if (holds) {
    ++tally().passed;
    return;
  }
  if (++tally().failed <= 20) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
}

#define CHECK(condition) outrider::check((condition), #condition, __FILE__, __LINE__)

// Whether `call` throws std::invalid_argument. Any other exception is an error of the core.
template <typename Call>
bool refuses(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

// Whether two rows of numbers are bit-identical.
template <typename T>
bool same(const std::vector<T>& left, const std::vector<T>& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  // An integer from low to high, inclusive.
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool chance(double share) { return std::bernoulli_distribution(share)(engine_); }
  float normal(float width = 1.0f) { return std::normal_distribution<float>(0, width)(engine_); }
  double uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(engine_); }

  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(0, static_cast<int>(values.size()) - 1)];
  }

  std::vector<int> ids(int count, int vocab_size) {
    std::vector<int> out(static_cast<std::size_t>(count));
    for (int& id : out) id = pick(0, vocab_size - 1);
    return out;
  }

  std::vector<float> normals(std::size_t count, float width = 1.0f) {
    std::vector<float> out(count);
    for (float& x : out) x = normal(width);
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace outrider
