// Appending tokens: one for each sequence, or a block, or a whole prompt, each sequence its own
// number.
#include "model.h"

#include "run_decoder.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

namespace {

constexpr int kLogitsAtOnce = 8192;  // logits that are looked at together; the caches keep so many

// Panels of the head that are computed at a time for so many rows.
int head_panels(int rows) { return std::max(4, kLogitsAtOnce / (rows * kPanel)); }

}  // namespace

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

std::vector<std::vector<int>> Model::likeliest(State& state,
                                               const std::vector<std::vector<int>>& tokens,
                                               const Forbidden& forbidden) {
  const State::ExclusiveUse use(state);
  check_state(state);
  check_forbidden(forbidden, state.sequences.size());
  return run_likeliest(state, tokens, forbidden);
}

std::vector<std::vector<int>> Model::greedy(State& state, const std::vector<int>& newest,
                                            int steps, const std::vector<int>& ends,
                                            const Forbidden& forbidden) {
  const State::ExclusiveUse use(state);
  check_state(state);
  check_forbidden(forbidden, state.sequences.size());
  if (steps < 1) throw std::invalid_argument("greedy: steps is " + std::to_string(steps));
  std::vector<std::vector<int>> fed, said(newest.size());
  for (const int token : newest) fed.push_back({token});
  for (bool ended = false; steps > 0 && !ended; --steps) {
    fed = run_likeliest(state, fed, forbidden);
    for (std::size_t n = 0; n < fed.size(); ++n) {
      said[n].push_back(fed[n][0]);
      ended = ended || std::find(ends.begin(), ends.end(), fed[n][0]) != ends.end();
    }
  }
  return said;
}

std::vector<std::vector<int>> Model::run_likeliest(State& state,
                                                   const std::vector<std::vector<int>>& tokens,
                                                   const Forbidden& forbidden) {
  const Plan planned = plan(state, tokens);
  std::vector<int> found(planned.rows.size());
  run_decoder(
      state, planned,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        own.logits.reserve(std::max<std::size_t>(kLogitsAtOnce, area(count, 4 * kPanel)));
        shared.context.reserve(area(count, std::max(spec_.width, 2 * team_.threads())));
      },
      [&](ForwardPass& pass) {
        argmax_tokens(pass, state, forbidden, found.data() + (pass.rows - planned.rows.data()));
      });
  std::vector<std::vector<int>> best;
  best.reserve(tokens.size());
  auto at = found.begin();
  for (const int count : planned.counts) {
    best.emplace_back(at, at + count);
    at += count;
  }
  return best;
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

// Each worker takes the argmax of its own columns, some at a time so that their logits stay in the
// cache; the first worker then compares what they found.
void Model::argmax_tokens(ForwardPass& pass, const State& state, const Forbidden& forbidden,
                          int* best) const {
  const int workers = pass.worker.count;
  float* logits = pass.own.logits.data();
  // [row][worker][value, index], in a buffer that is free: the last barrier was that of a
  // feed-forward (E in layer.cpp) or later, after which `sublayer_out` is still read, `context` is
  // not.
  float* found = pass.shared.context.data();
  const auto found_by = [&](int r) { return found + 2 * area(r * workers + pass.worker.index, 1); };
  for (int r = 0; r < pass.count; ++r) {
    found_by(r)[0] = kUnlisted;
    found_by(r)[1] = 0.0f;
  }
  const auto list_of = [&](int r) { return state.shortlist(pass.rows[r].sequence); };
  // Takes the argmax of rows that have one shortlist, or none.
  const auto search = [&](Range rows, const Shortlist* list) {
    const Matrix& head = list == nullptr ? head_ : list->head;
    const int count = rows.end - rows.begin, step = head_panels(count), width = spec_.width;
    const Range panels = pass.worker.share(head.panels());
    pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data() + area(rows.begin, width),
                          count, width, width);
    for (int panel = panels.begin; panel < panels.end; panel += step) {
      const Range some{panel, std::min(panel + step, panels.end)};
      const int begin = panel * kPanel;
      const int columns = std::min(some.end * kPanel, head.columns()) - begin;
      head.multiply(kernel_, pass.own.operand, some, logits, step * kPanel);
      for (int r = rows.begin; r < rows.end; ++r) {
        float* row = logits + area(r - rows.begin, step * kPanel);
        const auto forbid = [&](const std::vector<int>& tokens) {
          for (const int token : tokens) {
            const int column = list == nullptr ? token : list->find(token);
            if (column >= begin && column < begin + columns) row[column - begin] = kUnlisted;
          }
        };
        forbid(forbidden.always);
        const auto sequence = static_cast<std::size_t>(pass.rows[r].sequence);
        if (!forbidden.by_sequence.empty()) forbid(forbidden.by_sequence[sequence]);
        if (!forbidden.early.empty() &&
            pass.rows[r].position - state.sequences[sequence]->length < forbidden.early[sequence])
          forbid(forbidden.ends);
        const int index = kernel_.rows->argmax(row, columns);
        float* mine = found_by(r);
        if (!(row[index] > mine[0])) continue;  // nor where it is NaN
        const int token = list == nullptr ? begin + index
                                          : list->words[static_cast<std::size_t>(begin + index)];
        mine[0] = row[index];
        mine[1] = static_cast<float>(token);
      }
    }
  };
  for (int begin = 0, end = 0; begin < pass.count; begin = end) {
    const Shortlist* list = list_of(begin);
    for (end = begin + 1; end < pass.count && list_of(end) == list;) ++end;
    search({begin, end}, list);
  }
  pass.worker.wait();  // `found` is whole: the first worker reads what all have found
  if (pass.worker.index != 0) return;
  for (int r = 0; r < pass.count; ++r) {
    const float* one = found + 2 * area(r * workers, 1);
    int leader = 0;
    for (int w = 1; w < workers; ++w)
      if (one[2 * w] > one[2 * leader]) leader = w;
    best[r] = static_cast<int>(one[2 * leader + 1]);
  }
}

}  // namespace outrider
