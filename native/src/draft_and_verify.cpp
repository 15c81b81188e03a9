// A round of tandem decoding in one call: guess a block, check as much of it as is worth it.
#include "model.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace outrider {
namespace {

// How many of the guesses to check, at least one: those before the mean chance of the rows that all
// up to here hold falls below `min_survival`. Nothing holds behind an end token.
int worth_checking(const std::vector<std::int64_t>& tokens, const std::vector<float>& confidence,
                   int sequences, int slots, double min_survival, const std::vector<int>& ends) {
  const auto is_end = [&](std::int64_t token) {
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  };
  std::vector<double> chance(static_cast<std::size_t>(sequences), 1.0);
  for (int i = 0; i < slots; ++i) {
    double sum = 0.0;
    for (int b = 0; b < sequences; ++b) {
      const std::size_t at = area(b, slots) + static_cast<std::size_t>(i);
      double& mine = chance[static_cast<std::size_t>(b)];
      mine *= i > 0 && is_end(tokens[at - 1]) ? 0.0 : confidence[at];
      sum += mine;
    }
    if (i > 0 && (sum == 0.0 || sum < min_survival * sequences)) return i;
  }
  return slots;
}

}  // namespace

RoundOutput Model::draft_and_verify(State& state, const std::vector<int>& held,
                                    const std::vector<int>& last, int slots, double min_survival,
                                    const std::vector<int>& ends,
                                    const std::vector<int>& forbidden) {
  const auto began = std::chrono::steady_clock::now();
  if (slots < 1 || slots > kMaxTokens)
    throw std::invalid_argument("draft_and_verify: nothing is to be guessed");
  check_tokens(forbidden);
  {
    const State::ExclusiveUse use(state);
    state.rollback(held);
  }
  const int sequences = static_cast<int>(last.size());  // `draft` refuses any other number
  std::vector<std::int64_t> guessed(area(sequences, slots));
  std::vector<float> confidence(area(sequences, slots));
  draft(state, last, slots, {}, {guessed.data(), nullptr, nullptr, confidence.data()});
  const std::chrono::duration<double> drafting = std::chrono::steady_clock::now() - began;

  const int kept = worth_checking(guessed, confidence, sequences, slots, min_survival, ends),
            width = kept + 1;
  std::vector<int> tokens;
  tokens.reserve(area(sequences, width));
  for (int b = 0; b < sequences; ++b) {
    tokens.push_back(last[static_cast<std::size_t>(b)]);
    for (int i = 0; i < kept; ++i)
      tokens.push_back(static_cast<int>(guessed[area(b, slots) + static_cast<std::size_t>(i)]));
  }
  std::vector<std::int64_t> best(area(sequences, width));
  likeliest(state, tokens, width, forbidden, best.data());

  RoundOutput round;
  round.drafting_seconds = drafting.count();
  for (int b = 0; b < sequences; ++b) {
    const auto guess = guessed.begin() + static_cast<std::ptrdiff_t>(area(b, slots));
    const auto found = best.begin() + static_cast<std::ptrdiff_t>(area(b, width));
    round.drafted.emplace_back(guess, guess + kept);
    round.best.emplace_back(found, found + width);
  }
  return round;
}

}  // namespace outrider
