// A round of tandem decoding in one call: guess blocks, check as much of each as is worth it.
#include "model.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

namespace outrider {
namespace {

// How many of a sequence's guesses to check: those before the chance that all up to here hold falls
// below `min_survival`, at least one where there is any. Nothing holds behind an end token.
std::size_t worth_checking(const std::vector<int>& tokens, const std::vector<float>& confidence,
                           double min_survival, const std::vector<int>& ends) {
  double chance = 1.0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    chance *= confidence[i];
    if (i == 0) continue;
    if (std::find(ends.begin(), ends.end(), tokens[i - 1]) != ends.end()) return i;
    if (!(chance > 0.0 && chance >= min_survival)) return i;
  }
  return tokens.size();
}

}  // namespace

RoundOutput Model::draft_and_verify(State& state, const std::vector<int>& held,
                                    const std::vector<int>& last, const std::vector<int>& counts,
                                    double min_survival, const std::vector<std::vector<int>>& ends,
                                    const Forbidden& forbidden, bool log_probs) {
  const auto began = std::chrono::steady_clock::now();
  const State::ExclusiveUse use(state);
  check_state(state);
  check_forbidden(forbidden, state.sequences.size());
  if (ends.size() != 1 && ends.size() != state.sequences.size())
    throw std::invalid_argument("draft_and_verify: end tokens of all rows, or of each");
  state.rollback(held);
  Draft draft = run_draft(state, last, counts, {}, {});
  const std::chrono::duration<double> drafting = std::chrono::steady_clock::now() - began;

  std::vector<std::vector<int>> fed(last.size());
  for (std::size_t b = 0; b < last.size(); ++b) {
    std::vector<int>& guesses = draft.tokens[b];
    guesses.resize(worth_checking(guesses, draft.confidence[b], min_survival,
                                  ends.size() == 1 ? ends[0] : ends[b]));
    draft.confidence[b].resize(guesses.size());
    fed[b].reserve(guesses.size() + 1);
    fed[b].push_back(last[b]);
    fed[b].insert(fed[b].end(), guesses.begin(), guesses.end());
  }
  RoundOutput round{std::move(draft), {}, drafting.count()};
  if (!log_probs) {
    round.best.tokens = run_likeliest(state, fed, forbidden);
    return round;
  }
  Question question;
  question.sequences.resize(last.size());
  std::iota(question.sequences.begin(), question.sequences.end(), 0);
  question.places = kMaxTokens;
  question.forbidden = forbidden;
  question.log_probs = true;
  round.best = std::move(run_answer(state, fed, {question}, false)[0]);
  return round;
}

}  // namespace outrider
