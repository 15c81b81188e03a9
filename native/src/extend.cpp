// Appending tokens: one for each sequence, or a block, or a whole prompt, each sequence its own
// number.
#include "model.h"

#include "run_decoder.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

// Rows that have logits, in order, and which rows of the logits are theirs.
struct Model::Scored {
  std::vector<int> rows, outputs;
};

Model::Plan Model::plan(const State& state, const std::vector<std::vector<int>>& tokens) const {
  if (tokens.size() != state.sequences.size())
    throw std::invalid_argument("extend: tokens must have one row for each of the state");
  Plan plan;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    const int length = state.sequences[b]->length, capacity = state.sequences[b]->capacity;
    const int sequence = static_cast<int>(b), count = static_cast<int>(tokens[b].size());
    if (tokens[b].size() > static_cast<std::size_t>(capacity - length))
      throw std::invalid_argument(std::to_string(tokens[b].size() + static_cast<std::size_t>(length)) +
                                  " tokens do not fit a state opened for " +
                                  std::to_string(capacity));
    check_tokens(tokens[b]);
    for (int t = 0; t < count; ++t)
      plan.rows.push_back(
          {sequence, tokens[b][static_cast<std::size_t>(t)], length + t, length + t + 1});
    plan.counts.push_back(count);
    plan.longest = std::max(plan.longest, length + count);
  }
  return plan;
}

void Model::extend(State& state, const std::vector<std::vector<int>>& tokens, int width, bool last,
                   float* logits) {
  const State::ExclusiveUse use(state);
  check_state(state);
  const Plan planned = plan(state, tokens);
  Scored scored;
  int row = 0;
  for (int b = 0; b < state.size(); ++b) {
    const int count = planned.counts[static_cast<std::size_t>(b)];
    if (!last && count > width)
      throw std::invalid_argument("extend: there is no room for the scores");
    for (int t = last ? std::max(0, count - 1) : 0; t < count; ++t) {
      scored.rows.push_back(row + t);
      scored.outputs.push_back(last ? b : b * width + t);
    }
    row += count;
  }
  run_decoder(
      state, planned, [](SharedBuffers&, WorkerBuffers&, int) {},
      [&](ForwardPass& pass) {
        const int first = static_cast<int>(pass.rows - planned.rows.data());
        write_logits(pass, state, first, scored, logits);
      });
}

void Model::cross_attention(State& state, const std::vector<std::vector<int>>& tokens, int keys,
                            float* weights) {
  const State::ExclusiveUse use(state);
  check_state(state);
  Plan planned = plan(state, tokens);
  for (const auto& sequence : state.sequences)
    if (!sequence->source || sequence->source->length > keys)
      throw std::invalid_argument("cross_attention: there is no room for the weights of a source");
  const CrossWeights record{weights, planned.rows.data(), spec_.decoder_layers, spec_.heads, keys};
  planned.cross_weights = &record;
  run_decoder(
      state, planned, [](SharedBuffers&, WorkerBuffers&, int) {}, [](ForwardPass&) {});
}

void Model::check_forbidden(const Forbidden& forbidden, std::size_t sequences) const {
  check_tokens(forbidden.always);
  check_tokens(forbidden.ends);
  for (const std::vector<int>& tokens : forbidden.by_sequence) check_tokens(tokens);
  if ((!forbidden.by_sequence.empty() && forbidden.by_sequence.size() != sequences) ||
      (!forbidden.early.empty() && forbidden.early.size() != sequences))
    throw std::invalid_argument("what is forbidden to each row must be as many as rows");
}

void Model::write_logits(ForwardPass& pass, const State& state, int first, const Scored& scored,
                         float* logits) const {
  const int width = spec_.width;
  const auto begin = std::lower_bound(scored.rows.begin(), scored.rows.end(), first);
  const auto end = std::lower_bound(begin, scored.rows.end(), first + pass.count);
  const int wanted = static_cast<int>(end - begin);
  if (wanted == 0) return;
  if (wanted < pass.count)
    for (int n = 0; n < wanted; ++n)  // a row only ever moves to the front
      std::copy_n(pass.own.stream.data() + area(begin[n] - first, width), width,
                  pass.own.stream.data() + area(n, width));
  pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data(), wanted, width, width);
  score(
      pass, state, wanted, [&](int n) { return begin[n] - first; }, logits,
      scored.outputs.data() + (begin - scored.rows.begin()));
}

}  // namespace outrider
