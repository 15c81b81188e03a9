// Drafting blocks of tokens; the state stays as it is.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace outrider {
namespace {

// What is said for each of so many sequences; nothing may be said at all.
template <typename T>
void check_each(const std::vector<T>& said, std::size_t sequences) {
  if (!said.empty() && said.size() != sequences)
    throw std::invalid_argument("draft: temperatures, numbers and known tokens are those of a row");
}

// The part of one sequence, which is empty or long enough for its block.
template <typename T>
const T* part_of(const std::vector<std::vector<T>>& said, std::size_t sequence, int count) {
  if (said.empty() || said[sequence].empty()) return nullptr;
  if (said[sequence].size() < static_cast<std::size_t>(count))
    throw std::invalid_argument("draft: a row needs a number, or a known token, for every guess");
  return said[sequence].data();
}

}  // namespace

Draft Model::draft(State& state, const std::vector<int>& last, const std::vector<int>& counts,
                   const DraftSampling& sampling, const DraftCandidates& out) {
  const State::ExclusiveUse use(state);
  return run_draft(state, last, counts, sampling, out);
}

Draft Model::run_draft(State& state, const std::vector<int>& last, const std::vector<int>& counts,
                       const DraftSampling& sampling, const DraftCandidates& out) {
  check_state(state);
  const DraftPlan plan = plan_draft(state, last, counts, sampling);
  if (out.ids != nullptr && out.slots < plan.longest)
    throw std::invalid_argument("draft: there is no room for the candidates");
  Draft draft;
  for (const int count : counts) {
    draft.tokens.emplace_back(static_cast<std::size_t>(count));
    draft.confidence.emplace_back(static_cast<std::size_t>(count));
  }
  if (plan.rows.empty()) return draft;
  CacheViews views = view(state, &Caches::drafter);
  int longest = views.longest;
  for (const Row& row : plan.rows) longest = std::max(longest, row.visible);
  run(
      plan.rows, state.size(), static_cast<int>(plan.rows.size()),
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, drafter_->stack().shape(), count, longest);
        drafter_->reserve_inputs(shared, own, count);
        drafter_->reserve_choice(shared, own, count);
      },
      [&](ForwardPass& pass) {
        views.attach(pass, state.drafter_angles.get());
        embed_slots(pass, plan);
        drafter_->add_last_state(pass, state, plan);
        add_positions(pass, position_table_, state.sines.get());
        drafter_->stack().run(pass);
        drafter_->choose_tokens(pass, plan, draft, out);
      });
  return draft;
}

DraftPlan Model::plan_draft(const State& state, const std::vector<int>& last,
                            const std::vector<int>& counts, const DraftSampling& sampling) const {
  if (!drafter_ || !state.drafting())
    throw std::invalid_argument("this state was not opened for drafting");
  const std::size_t sequences = state.sequences.size();
  if (last.size() != sequences || counts.size() != sequences)
    throw std::invalid_argument("draft: one token per row, and how many to guess");
  check_each(sampling.temperatures, sequences);
  check_each(sampling.uniform, sequences);
  check_each(sampling.known, sequences);
  for (const float temperature : sampling.temperatures)
    if (!(temperature > 0.0f) || !std::isfinite(temperature))
      throw std::invalid_argument("temperature must be above zero, and a number of 32 bits");
  DraftPlan plan;
  for (std::size_t b = 0; b < sequences; ++b) {
    const int length = state.sequences[b]->length, capacity = state.sequences[b]->capacity;
    const int count = counts[b];
    if (count < 0 || count > kMaxTokens)
      throw std::invalid_argument("draft: there is no block of " + std::to_string(count) +
                                  " tokens");
    if (length + count > capacity)
      throw std::invalid_argument("draft: a block of " + std::to_string(count) +
                                  " tokens does not fit a state opened for " +
                                  std::to_string(capacity));
    check_token(last[b]);
    if (count == 0) continue;
    DraftBlock block{static_cast<int>(b), static_cast<int>(plan.rows.size()), count, last[b]};
    if (!sampling.temperatures.empty()) block.temperature = sampling.temperatures[b];
    block.uniform = part_of(sampling.uniform, b, count);
    block.known = part_of(sampling.known, b, count);
    int token = last[b];
    for (int i = 0; i < count; ++i) {
      plan.rows.push_back({block.sequence, token, length + i, length + i + 1});
      plan.block_of.push_back(static_cast<int>(plan.blocks.size()));
      // Slot i + 1 reads the token that slot i guesses, if it is known.
      token = block.known == nullptr ? -1 : std::max(-1, block.known[i]);
      if (token >= spec_.words) throw std::invalid_argument("draft: a known token is not a word");
    }
    plan.longest = std::max(plan.longest, count);
    plan.blocks.push_back(block);
  }
  return plan;
}

void Model::embed_slots(ForwardPass& pass, const DraftPlan& plan) const {
  const int width = spec_.width, first = static_cast<int>(pass.rows - plan.rows.data());
  for (int r = 0; r < pass.count; ++r) {
    const int token = pass.rows[r].token;
    float* x = pass.own.stream.data() + area(r, width);
    if (token < 0)
      std::copy_n(drafter_->mask(), width, x);
    else
      embed_token(tokens_, token, x);
    const int block = plan.block_of[static_cast<std::size_t>(first + r)];
    kernel_.rows->add(x, drafter_->slot(first + r - plan.block(block).first), width);
  }
}

}  // namespace outrider
