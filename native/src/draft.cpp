// Guessing a block of tokens with the drafter; the state stays as it is.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

void Model::draft(State& state, const std::vector<int>& last, int slots, const Choice& choice,
                  const Drafted& out) {
  const State::Use use(state);
  check_state(state);
  const std::vector<Row> rows = plan_slots(state, last, slots, choice);
  Views views = view(state, &Remembered::drafter);
  int longest = views.longest;
  for (const Row& row : rows) longest = std::max(longest, row.visible);
  run(
      rows, state.size(), static_cast<int>(rows.size()),
      [&](Shared& shared, Own& own, int count) {
        prepare(shared, own, drafter_->stack().shape(), count, longest);
        drafter_->prepare(shared, own, count);
        drafter_->prepare_choice(shared, own, count);
      },
      [&](Pass& pass, int first) {
        views.show(pass, state.drafter_angles.get());
        embed_slots(pass, slots);
        drafter_->add_newest(pass, state, first, slots);
        locate(pass, places_, state.sines.get());
        drafter_->stack().run(pass);
        drafter_->choose(pass, last, first, slots, choice, out);
      });
}

std::vector<Row> Model::plan_slots(const State& state, const std::vector<int>& last, int slots,
                                   const Choice& choice) const {
  if (!drafter_ || !state.drafting())
    throw std::invalid_argument("this state was not opened for drafting");
  if (last.size() != state.texts.size()) throw std::invalid_argument("draft: one token per row");
  if (slots < 1 || slots > kLongest)
    throw std::invalid_argument("draft: there is no block of " + std::to_string(slots) + " tokens");
  std::vector<Row> rows;
  for (int b = 0; b < state.size(); ++b) {
    const int length = state.texts[static_cast<std::size_t>(b)]->length;
    if (length + slots > state.capacity())
      throw std::invalid_argument("draft: a block of " + std::to_string(slots) +
                                  " tokens does not fit a state opened for " +
                                  std::to_string(state.capacity()));
    check_token(last[static_cast<std::size_t>(b)]);
    // What slot i + 1 is told is the token that slot i guesses.
    int token = last[static_cast<std::size_t>(b)];
    for (int i = 0; i < slots; ++i) {
      rows.push_back({b, token, length + i, length + i + 1});
      const std::int64_t told =
          choice.told == nullptr ? -1 : choice.told[static_cast<std::ptrdiff_t>(b) * slots + i];
      if (told >= spec_.words) throw std::invalid_argument("draft: a told token is not a word");
      token = told < 0 ? -1 : static_cast<int>(told);
    }
  }
  return rows;
}

void Model::embed_slots(Pass& pass, int slots) const {
  const int width = spec_.width;
  for (int r = 0; r < pass.count; ++r) {
    const int token = pass.rows[r].token;
    float* x = pass.own.stream.data() + area(r, width);
    if (token < 0)
      std::copy_n(drafter_->mask(), width, x);
    else
      look_up(tokens_, token, x);
    kernel_.rows->add(x, drafter_->slot(r % slots), width);
  }
}

}  // namespace outrider
