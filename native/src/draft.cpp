// Drafting a block of tokens; the state stays as it is.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

void Model::draft(State& state, const std::vector<int>& last, int slots,
                  const DraftSampling& sampling, const DraftOutput& out) {
  const State::ExclusiveUse use(state);
  check_state(state);
  const std::vector<Row> rows = plan_slots(state, last, slots, sampling);
  CacheViews views = view(state, &Caches::drafter);
  int longest = views.longest;
  for (const Row& row : rows) longest = std::max(longest, row.visible);
  run(
      rows, state.size(), static_cast<int>(rows.size()),
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, drafter_->stack().shape(), count, longest);
        drafter_->reserve_inputs(shared, own, count);
        drafter_->reserve_choice(shared, own, count);
      },
      [&](ForwardPass& pass, int first) {
        views.attach(pass, state.drafter_angles.get());
        embed_slots(pass, slots);
        drafter_->add_last_state(pass, state, first, slots);
        add_positions(pass, position_table_, state.sines.get());
        drafter_->stack().run(pass);
        drafter_->choose_tokens(pass, last, first, slots, sampling, out);
      });
}

std::vector<Row> Model::plan_slots(const State& state, const std::vector<int>& last, int slots,
                                   const DraftSampling& sampling) const {
  if (!drafter_ || !state.drafting())
    throw std::invalid_argument("this state was not opened for drafting");
  if (last.size() != state.sequences.size())
    throw std::invalid_argument("draft: one token per row");
  if (slots < 1 || slots > kMaxTokens)
    throw std::invalid_argument("draft: there is no block of " + std::to_string(slots) + " tokens");
  std::vector<Row> rows;
  for (int b = 0; b < state.size(); ++b) {
    const int length = state.sequences[static_cast<std::size_t>(b)]->length;
    if (length + slots > state.capacity())
      throw std::invalid_argument("draft: a block of " + std::to_string(slots) +
                                  " tokens does not fit a state opened for " +
                                  std::to_string(state.capacity()));
    check_token(last[static_cast<std::size_t>(b)]);
    // Slot i + 1 reads the token that slot i guesses, if it is known.
    int token = last[static_cast<std::size_t>(b)];
    for (int i = 0; i < slots; ++i) {
      rows.push_back({b, token, length + i, length + i + 1});
      const std::int64_t known = sampling.known == nullptr
                                     ? -1
                                     : sampling.known[static_cast<std::ptrdiff_t>(b) * slots + i];
      if (known >= spec_.words) throw std::invalid_argument("draft: a known token is not a word");
      token = known < 0 ? -1 : static_cast<int>(known);
    }
  }
  return rows;
}

void Model::embed_slots(ForwardPass& pass, int slots) const {
  const int width = spec_.width;
  for (int r = 0; r < pass.count; ++r) {
    const int token = pass.rows[r].token;
    float* x = pass.own.stream.data() + area(r, width);
    if (token < 0)
      std::copy_n(drafter_->mask(), width, x);
    else
      embed_token(tokens_, token, x);
    kernel_.rows->add(x, drafter_->slot(r % slots), width);
  }
}

}  // namespace outrider
