// Products with weights of four bits, and the bounds of scores.
#include "check.h"
#include "checks.h"
#include "screen.h"
#include "tiny_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

std::vector<const Kernel*> screening_kernels() {
  std::vector<const Kernel*> found;
  for (const std::string& name : available_kernels())
    if (const Kernel& kernel = find_kernel(name); kernel.nibbles) found.push_back(&kernel);
  return found;
}

// Every instruction set gives the sums computed here, also for the largest numbers.
void check_nibbles(Dice& dice, int rows, int panels, int groups, bool largest) {
  const int depth = groups * kGroup, columns = panels * kPanel;
  Buffer<std::int8_t> bytes(static_cast<std::size_t>(rows * depth));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::int8_t>(largest ? dice.one_of({-127, 127}) : dice.pick(-127, 127));
  Buffer<std::uint8_t> packed(static_cast<std::size_t>(columns * depth / 2));
  std::fill_n(packed.data(), packed.size(), std::uint8_t{0});
  std::vector<std::int32_t> expected(static_cast<std::size_t>(rows * columns * groups), 0);
  for (int c = 0; c < columns; ++c)
    for (int k = 0; k < depth; ++k) {
      const int nibble = largest ? 15 : dice.pick(0, 15), place = k % kGroup;
      const int group = c / kPanel * groups + k / kGroup;
      const int at = group * kGroupBytes + (place / 8 * kPanel + c % kPanel) * 4 + place % 4;
      packed[static_cast<std::size_t>(at)] |=
          static_cast<std::uint8_t>(place % 8 < 4 ? nibble : nibble << 4);
      for (int r = 0; r < rows; ++r)
        expected[static_cast<std::size_t>((r * panels * groups + group) * kPanel + c % kPanel)] +=
            nibble * bytes[static_cast<std::size_t>(r * depth + k)];
    }
  for (const Kernel* kernel : screening_kernels()) {
    std::vector<std::int32_t> dots(expected.size(), -1);
    kernel->nibbles(bytes.data(), rows, groups, packed.data(), panels, dots.data());
    CHECK(same(dots, expected));
  }
}

// A head and states. Some tokens have equal weights; states are close to one token or to none.
struct Head {
  int vocab_size, width;
  bool biased;
  std::vector<float> weight, bias, rotation;

  Head(Dice& dice, float size)
      : vocab_size(dice.pick(1, 300)),
        width(2 * dice.pick(1, 100)),
        biased(dice.chance(0.5)),
        weight(dice.normals(area(vocab_size, width), size)),
        bias(dice.normals(static_cast<std::size_t>(vocab_size), size)),
        rotation(random_rotation(dice, width)) {
    for (int n = 0; n < vocab_size / 8; ++n)
      std::copy_n(token(dice.pick(0, vocab_size - 1)), width, token(dice.pick(0, vocab_size - 1)));
    if (dice.chance(0.3)) std::fill_n(token(dice.pick(0, vocab_size - 1)), width, 0.0f);
  }

  float* token(int n) { return weight.data() + area(n, width); }

  std::vector<float> states(Dice& dice, int rows) {
    std::vector<float> out = dice.normals(area(rows, width), std::exp(dice.normal(4.0f)));
    for (int r = 0; r < rows; ++r)
      if (dice.chance(0.5))
        std::copy_n(token(dice.pick(0, vocab_size - 1)), width, &out[area(r, width)]);
    if (dice.chance(0.1)) std::fill_n(out.begin(), width, 0.0f);
    return out;
  }

  Weights weights() const {
    Weights found;
    found.insert({"head.weight", weight.data(), NumberType::float32, {vocab_size, width}});
    if (biased) found.insert({"head.bias", bias.data(), NumberType::float32, {vocab_size}});
    found.insert({"head.rotation.weight", rotation.data(), NumberType::float32, {width, width}});
    return found;
  }
};

void check_bounds(Dice& dice) {
  Head example(dice, std::exp(dice.normal(3.0f)));
  const int rows = dice.pick(1, 8), vocab_size = example.vocab_size, width = example.width;
  const std::vector<float> x = example.states(dice, rows);
  for (const Kernel* kernel : screening_kernels()) {
    PackedWeights packed(example.weights());
    CHECK(Screen::available(packed, "head"));
    const Matrix head(packed, "head", vocab_size, width, Precision::int8, example.biased);
    const Screen screen(packed, *kernel, "head", vocab_size, width, example.biased);
    Operand operand;
    operand.reserve(Precision::int8, rows, width);
    operand.load(*kernel, Precision::int8, x.data(), rows, width, width);
    const int padded = head.panels() * kPanel;
    std::vector<float> scores(area(rows, padded));
    head.multiply(*kernel, operand, {0, head.panels()}, scores.data(), padded);
    ScreenBuffers buffers;
    screen.reserve(buffers, rows);
    const Range some{dice.pick(0, head.panels() - 1), head.panels()};
    screen.bound(*kernel, buffers, x.data(), rows, width, some);
    bool above = true;
    for (int r = 0; r < rows; ++r)
      for (int c = some.begin * kPanel; c < vocab_size; ++c) {
        const int place = r * (some.end - some.begin) + c / kPanel - some.begin;
        const float score = scores[area(r, padded) + static_cast<std::size_t>(c)];
        above &= buffers.bounds[static_cast<std::size_t>(place)] >= score;
      }
    CHECK(above);
  }
}

// If one token has a far larger score, nearly all others are excluded.
void check_that_it_spares(Dice& dice) {
  Head example(dice, 1.0f);
  example.vocab_size = 2000;
  example.width = 128;
  example.biased = false;
  example.weight = dice.normals(area(example.vocab_size, example.width));
  example.rotation = random_rotation(dice, example.width);
  const Kernel& kernel = find_kernel("");
  if (!kernel.nibbles) return;
  PackedWeights packed(example.weights());
  const Screen screen(packed, kernel, "head", example.vocab_size, example.width, false);
  ScreenBuffers buffers;
  screen.reserve(buffers, 1);
  const float* one = example.token(dice.pick(0, example.vocab_size - 1));
  screen.bound(kernel, buffers, one, 1, example.width, {0, example.vocab_size / kPanel});
  double score = 0.0;
  for (int k = 0; k < example.width; ++k) score += static_cast<double>(one[k]) * one[k];
  const float* bounds = buffers.bounds.data();
  const auto left = std::count_if(bounds, bounds + example.vocab_size / kPanel,
                                  [&](float bound) { return bound > 0.95 * score; });
  CHECK(left >= 1 && left <= 2);
}

void check_refusals(Dice& dice) {
  Head example(dice, 1.0f);
  example.token(0)[0] = std::numeric_limits<float>::infinity();
  PackedWeights packed(example.weights());
  CHECK(refuses([&] {
    Screen(packed, find_kernel("portable"), "head", example.vocab_size, example.width,
           example.biased);
  }));
}

}  // namespace

void check_screens(std::uint64_t seed) {
  Dice dice(seed);
  for (int rows = 1; rows <= 9; ++rows)
    for (int panels : {1, 2, 5})
      check_nibbles(dice, rows, panels, dice.pick(1, 4), dice.chance(0.3));
  check_nibbles(dice, 3, 2, 8, true);
  for (int round = 0; round < 60; ++round) check_bounds(dice);
  for (int round = 0; round < 5; ++round) check_that_it_spares(dice);
  check_refusals(dice);
}

}  // namespace outrider
