// A packed model in a file: the same results after loading, and no crash if bytes are changed.
#include "check.h"
#include "checks.h"
#include "checksum.h"
#include "examples.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

namespace outrider {
namespace {

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::temp_directory_path() /
              ("outrider-core-test-" + std::to_string(std::random_device{}()))) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }

  const std::filesystem::path& path() const { return path_; }
  std::string read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<Engine> load(const TinyModel& tiny, const TemporaryFile& file,
                             const std::string& instruction_set) {
  return std::make_unique<Engine>(Model(std::make_shared<PackedWeights>(file.path()), tiny.spec,
                                        tiny.drafter, tiny.ctc, instruction_set),
                                  1);
}

void check_round_trip(Dice& dice, Precision precision) {
  const TinyModel tiny = random_model(dice, precision);
  const TemporaryFile file;
  const std::unique_ptr<Engine> built = tiny.build("", 1);
  built->model().weights->save(file.path(), "about");
  const Example example = random_examples(dice, tiny, 1)[0];
  const Transcript expected = alone(*built, tiny, example);
  for (const std::string& name : available_kernels()) {
    const std::unique_ptr<Engine> loaded = load(tiny, file, name);
    CHECK(loaded->model().weights->about() == "about");
    CHECK(equal(alone(*loaded, tiny, example), expected));
  }
}

// Replaces some weights by extreme values.
void poison(Dice& dice, std::string& bytes) {
  const float values[] = {std::nanf(""), std::numeric_limits<float>::infinity(), 3e38f, -3e38f};
  for (int n = dice.pick(1, 30); n > 0; --n) {
    const int place = dice.pick(0, static_cast<int>(bytes.size()) / 4 - 1);
    std::memcpy(bytes.data() + 4 * static_cast<std::size_t>(place), values + dice.pick(0, 3), 4);
  }
}

void scratch(Dice& dice, std::string& bytes) {
  const int end = static_cast<int>(bytes.size()) - 1;
  for (int n = dice.pick(1, 3); n > 0; --n)
    bytes[static_cast<std::size_t>(dice.pick(0, dice.chance(0.7) ? std::min(end, 2000) : end))] =
        static_cast<char>(dice.pick(0, 255));
}

// Recomputes the checksums of all sections that can still be located.
void seal(std::string& bytes) {
  const auto number = [&]<typename T>(T value, std::size_t at) {
    if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  const auto put = [&](std::size_t begin, std::size_t count, std::size_t at) {
    if (begin > bytes.size() || count > bytes.size() - begin || at + 8 > bytes.size()) return;
    const auto* first = reinterpret_cast<const unsigned char*>(bytes.data()) + begin;
    const std::uint64_t sum = xxh64({first, count});
    std::memcpy(bytes.data() + at, &sum, sizeof sum);
  };
  constexpr std::size_t kHead = 32, kEntry = 32;
  const std::size_t count = number(std::uint32_t{}, 12);
  if (count > bytes.size() / kEntry) return;
  std::size_t front = kHead + kEntry * count + number(std::uint64_t{}, 24);
  for (std::size_t at = kHead; at < kHead + kEntry * count; at += kEntry) {
    put(number(std::uint64_t{}, at), number(std::uint64_t{}, at + 8), at + 16);
    front += number(std::uint32_t{}, at + 28);
  }
  put(0, front, front);
}

void check_flips(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const TemporaryFile file;
  tiny.build("", 1)->model().weights->save(file.path(), "about");
  const std::string whole = file.read();
  const Example example = random_examples(dice, tiny, 1)[0];
  const Transcript expected = alone(*load(tiny, file, ""), tiny, example);
  int refused = 0;
  for (int n = 0; n < 60; ++n) {
    std::string changed = whole;
    const int place = dice.pick(0, static_cast<int>(whole.size()) - 1);
    changed[static_cast<std::size_t>(place)] ^= static_cast<char>(1 << dice.pick(0, 7));
    file.write(changed);
    refused +=
        refuses([&] { CHECK(equal(alone(*load(tiny, file, ""), tiny, example), expected)); });
  }
  CHECK(refused > 30);  // the other flips are between sections
}

void check_damage(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const TemporaryFile file;
  tiny.build("", 1)->model().weights->save(file.path(), "about");
  const std::string whole = file.read();
  const Example example = random_examples(dice, tiny, 1)[0];
  for (int n = 0; n < 30; ++n) {
    std::string changed = whole;
    if (dice.chance(0.5))
      poison(dice, changed);
    else
      scratch(dice, changed);
    if (dice.chance(0.1)) changed.resize(static_cast<std::size_t>(dice.pick(0, 4000)));
    seal(changed);
    file.write(changed);
    const std::string name = available_kernels()[static_cast<std::size_t>(
        dice.pick(0, static_cast<int>(available_kernels().size()) - 1))];
    // Either the file is refused or the calls succeed.
    refuses([&] { CHECK(!alone(*load(tiny, file, name), tiny, example).logits.empty()); });
  }
}

}  // namespace

void check_files(std::uint64_t seed) {
  Dice dice(seed);
  for (int n = 0; n < 12; ++n)
    check_round_trip(dice, n % 3 == 0 ? Precision::float32 : Precision::int8);
  for (int n = 0; n < 12; ++n) check_damage(dice);
  for (int n = 0; n < 6; ++n) check_flips(dice);
}

}  // namespace outrider
