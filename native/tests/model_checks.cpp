// The calls of a model, one by one: copies, likeliest tokens, rounds, long prompts, refusals.
#include "check.h"
#include "checks.h"
#include "examples.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

// Copies of a row go their own ways, and share what they read of the source.
void check_copies(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const auto model = tiny.build("", dice.pick(1, 3));
  const std::vector<Example> one = random_examples(dice, tiny, 1);
  const Example& example = one[0];
  const int words = tiny.spec.words, beams = 3;
  const auto state = model->encode({example.source}, kRoom, true, false);
  const int length = static_cast<int>(example.tokens.size());
  std::vector<float> logits(static_cast<std::size_t>(words));
  model->extend(*state, example.tokens, length, {length}, true, logits.data());
  state->select({0, 0, 0});
  const std::vector<int> next = dice.ids(beams, words);
  std::vector<float> found(static_cast<std::size_t>(beams * words));
  model->extend(*state, next, 1, {1, 1, 1}, false, found.data());
  for (int beam = 0; beam < beams; ++beam) {
    Example longer = example;
    longer.tokens.push_back(next[static_cast<std::size_t>(beam)]);
    const std::vector<float> expected = alone(*model, tiny, longer).logits.back();
    const float* row = found.data() + beam * words;
    CHECK(same(std::vector<float>(row, row + words), expected));
    CHECK(same(alone(*model, tiny, example).logits.back(), logits));
  }
  std::vector<double> uniform(kSlots * 3);
  for (double& u : uniform) u = dice.uniform();
  const auto drawn = draft(*model, *state, next, kSlots, uniform.data());
  state->select({2});
  CHECK(same(draft(*model, *state, {next[2]}, kSlots, uniform.data() + 2 * kSlots)[0], drawn[2]));
  const std::vector<float> longer = draft(*model, *state, {next[2]})[0];
  const std::vector<float> shorter = draft(*model, *state, {next[2]}, 1)[0];
  CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));  // a slot sees none behind it
  state->select({});
  CHECK(state->size() == 0 && draft(*model, *state, {}).empty());
}

// The likeliest tokens are those whose logits are the largest, the first of equals.
void check_likeliest(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 9));
  const int words = tiny.spec.words, sequences = static_cast<int>(examples.size());
  const int width = dice.pick(1, 8);
  const std::vector<int> tokens = dice.ids(sequences * width, words);
  const std::vector<int> forbidden = dice.ids(dice.pick(0, 3), words);
  for (int threads = 1; threads <= 4; ++threads) {
    const auto model = tiny.build("", threads);
    const bool drafting = dice.chance(0.3);
    const auto state = model->encode(sources_of(examples), kRoom, drafting, false);
    const std::vector<int> counts(examples.size(), width);
    std::vector<float> logits(tokens.size() * static_cast<std::size_t>(words));
    model->extend(*state, tokens, width, counts, false, logits.data());
    state->rollback(std::vector<int>(examples.size(), 0));
    std::vector<std::int64_t> best(tokens.size(), -1), expected;
    model->likeliest(*state, tokens, width, forbidden, best.data());
    for (auto row = logits.begin(); row != logits.end(); row += words) {
      for (int token : forbidden) row[token] = -std::numeric_limits<float>::infinity();
      expected.push_back(std::max_element(row, row + words) - row);
    }
    CHECK(same(best, expected));
    CHECK(state->sequences[0]->length == width);
    CHECK(refuses([&] { model->likeliest(*state, tokens, width, {words}, best.data()); }));
  }
}

// A round is a draft, and then the likeliest tokens after as much of it as is worth checking.
void check_ride(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 5));
  const int words = tiny.spec.words, sequences = static_cast<int>(examples.size());
  const std::vector<int> last = dice.ids(sequences, words), forbidden = dice.ids(2, words);
  const auto model = tiny.build("", dice.pick(1, 3));
  const auto state = model->encode(sources_of(examples), kRoom, true, false);
  const auto other = model->encode(sources_of(examples), kRoom, true, false);
  const std::vector<std::vector<float>> drafted = draft(*model, *other, last);
  const std::size_t numbers = 2 + 2 * static_cast<std::size_t>(model->candidates());
  std::vector<int> ends;
  if (dice.chance(0.5)) ends = {words - 1, static_cast<int>(drafted[0][numbers])};
  const double min_survival = dice.one_of({0.0, 0.1, 0.4, 2.0});
  const std::vector<int> none(examples.size(), 0);
  std::vector<std::int64_t> forgotten(examples.size());
  model->likeliest(*state, last, 1, {}, forgotten.data());  // and to be taken back
  const RoundOutput round = model->draft_and_verify(*state, none, last, kSlots, min_survival, ends, forbidden);
  const int kept = static_cast<int>(round.drafted[0].size()), width = kept + 1;
  CHECK(kept >= 1 && kept <= kSlots && round.drafting_seconds >= 0.0);
  CHECK(min_survival < 1.0 || kept == 1);
  CHECK(min_survival > 0.0 || !ends.empty() || kept == kSlots);
  CHECK(sequences > 1 || ends.empty() || kept <= 2);  // the second guess was made an end
  std::vector<int> tokens;
  for (std::size_t b = 0; b < examples.size(); ++b) {
    tokens.push_back(last[b]);
    for (int i = 0; i < kept; ++i) {
      const float token = drafted[b][static_cast<std::size_t>(i) * numbers];
      CHECK(round.drafted[b][static_cast<std::size_t>(i)] == static_cast<std::int64_t>(token));
      tokens.push_back(static_cast<int>(token));
    }
  }
  std::vector<std::int64_t> best(tokens.size());
  model->likeliest(*other, tokens, width, forbidden, best.data());
  for (std::size_t b = 0; b < examples.size(); ++b)
    for (int i = 0; i < width; ++i)
      CHECK(round.best[b][static_cast<std::size_t>(i)] ==
            best[area(static_cast<int>(b), width) + static_cast<std::size_t>(i)]);
  CHECK(state->sequences[0]->length == width);
  CHECK(refuses([&] { model->draft_and_verify(*state, none, last, 0, min_survival, ends, forbidden); }));
  CHECK(refuses([&] { model->draft_and_verify(*state, none, last, kSlots, min_survival, ends, {words}); }));
  CHECK(refuses([&] { model->draft_and_verify(*state, none, {}, kSlots, min_survival, ends, forbidden); }));
}

// A prompt that is too long to be on its way at once, beside short ones, gives what blocks give.
void check_long_prompts(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  if (tiny.spec.position == Position::learned) return;  // which has no room for it
  const int width = dice.pick(1030, 2100), words = tiny.spec.words, block = 97;
  const std::vector<int> counts = {dice.pick(0, 40), width, dice.pick(0, 3)};
  const std::vector<int> tokens = dice.ids(3 * width, words), last = dice.ids(3, words);
  const std::vector<Example> examples = random_examples(dice, tiny, 3);
  const auto model = tiny.build("", dice.pick(1, 3));
  const auto whole = model->encode(sources_of(examples), width + kSlots, true, false);
  const auto pieces = model->encode(sources_of(examples), width + kSlots, true, false);
  std::vector<float> logits(static_cast<std::size_t>(3 * words), 0.0f);
  model->extend(*whole, tokens, width, counts, true, logits.data());
  for (int begin = 0; begin < width; begin += block) {
    std::vector<int> some, real;
    for (int b = 0; b < 3; ++b) {
      real.push_back(std::clamp(counts[static_cast<std::size_t>(b)] - begin, 0, block));
      for (int t = 0; t < block; ++t)
        some.push_back(t < real.back() ? tokens[area(b, width) + area(1, begin + t)] : 0);
    }
    std::vector<float> found(static_cast<std::size_t>(3 * words), 0.0f);
    model->extend(*pieces, some, block, real, true, found.data());
    for (int b = 0; b < 3; ++b) {
      const int count = counts[static_cast<std::size_t>(b)];
      if (count <= begin || count > begin + block) continue;
      const auto at = b * words;
      CHECK(std::equal(found.begin() + at, found.begin() + at + words, logits.begin() + at));
    }
  }
  const auto drafted = draft(*model, *whole, last), expected = draft(*model, *pieces, last);
  for (std::size_t b = 0; b < 3; ++b) CHECK(same(drafted[b], expected[b]));
}

void check_refusals(Dice& dice) {
  TinyModel tiny = random_model(dice, Precision::int8);
  const auto model = tiny.build("", 2), other = tiny.build("", 1);
  const std::vector<Example> examples = random_examples(dice, tiny, 2);
  const auto state = model->encode(sources_of(examples), 8, true, false);
  std::vector<float> logits(static_cast<std::size_t>(2 * 9 * tiny.spec.words));
  const auto extend = [&](std::vector<int> tokens, int width, std::vector<int> counts) {
    model->extend(*state, tokens, width, counts, false, logits.data());
  };
  {
    const State::ExclusiveUse use(*state);  // as if another thread were calling
    CHECK(refuses([&] { extend({0, 0}, 1, {1, 1}); }));
    CHECK(refuses([&] { draft(*model, *state, {0, 0}); }));
  }
  CHECK(refuses([&] { other->extend(*state, {0, 0}, 1, {1, 1}, false, logits.data()); }));
  CHECK(refuses([&] { draft(*other, *state, {0, 0}); }));
  std::vector<std::int64_t> best(2);
  CHECK(refuses([&] { other->likeliest(*state, {0, 0}, 1, {}, best.data()); }));
  CHECK(refuses([&] { extend({0, tiny.spec.words}, 1, {1, 1}); }));
  CHECK(refuses([&] { extend({-1, 0}, 1, {1, 1}); }));
  CHECK(refuses([&] { extend({0, 0}, 1, {2, 1}); }));
  CHECK(refuses([&] { extend(std::vector<int>(18, 0), 9, {9, 9}); }));
  extend({0, 0}, 1, {1, 1});
  CHECK(refuses([&] { state->rollback({0}); }));
  CHECK(refuses([&] { state->rollback({2, 1}); }));
  CHECK(refuses([&] { state->select({0, 2}); }));
  CHECK(refuses([&] { model->encode({}, 8, false, false); }));
  CHECK(refuses([&] { model->encode(sources_of(examples), 1 << 30, false, false); }));
  tiny.arrays.begin()->second.second[0] = std::nanf("");
  CHECK(refuses([&] { tiny.build("", 1); }));
  tiny.arrays.erase(tiny.arrays.begin());
  CHECK(refuses([&] { tiny.build("", 3); }));
}

}  // namespace

void check_models(std::uint64_t seed) {
  for (std::uint64_t round = 0; round < 12; ++round) {
    Dice dice(seed * 1000 + 500 + round);
    check_copies(dice);
    check_likeliest(dice);
    check_ride(dice);
    if (round % 3 == 0) check_long_prompts(dice);
    check_refusals(dice);
  }
}

}  // namespace outrider
