// Appending tokens: one for each sequence, or a block, or a whole prompt, each sequence its own
// number.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

constexpr int kLogitsAtOnce = 8192;  // logits that are looked at together; the caches keep so many
constexpr int kRowsAtOnce = 1024;    // tokens of a long prompt that are on their way at a time

// Panels of the head that are computed at a time for so many rows.
int head_panels(int rows) { return std::max(4, kLogitsAtOnce / (rows * kPanel)); }

// The tokens of an extend as rows, and where their logits go.
struct Model::Plan {
  std::vector<Row> rows;
  std::vector<int> scored;   // rows that have logits, in order
  std::vector<int> outputs;  // their rows among the logits
  int longest = 0;
};

Model::Plan Model::plan(const State& state, const std::vector<int>& tokens, int width,
                        const std::vector<int>& counts, bool last) const {
  if (width < 1 || tokens.size() != area(state.size(), width) ||
      counts.size() != state.sequences.size())
    throw std::invalid_argument("extend: tokens must be [rows, tokens], counts [rows]");
  Plan plan;
  plan.rows.reserve(tokens.size());
  for (int b = 0; b < state.size(); ++b) {
    const int count = counts[static_cast<std::size_t>(b)];
    const int length = state.sequences[static_cast<std::size_t>(b)]->length;
    if (count < 0 || count > width)
      throw std::invalid_argument("extend: a row has " + std::to_string(count) +
                                  " real tokens of " + std::to_string(width));
    if (length + count > state.capacity())
      throw std::invalid_argument(std::to_string(length + count) +
                                  " tokens do not fit a state opened for " +
                                  std::to_string(state.capacity()));
    for (int t = 0; t < count; ++t) {
      const int token = tokens[area(b, width) + static_cast<std::size_t>(t)];
      check_token(token);
      if (!last || t == count - 1) {
        plan.scored.push_back(static_cast<int>(plan.rows.size()));
        plan.outputs.push_back(last ? b : b * width + t);
      }
      plan.rows.push_back({b, token, length + t, length + t + 1});
    }
    plan.longest = std::max(plan.longest, length + count);
  }
  return plan;
}

void Model::extend(State& state, const std::vector<int>& tokens, int width,
                   const std::vector<int>& counts, bool last, float* logits) {
  const State::ExclusiveUse use(state);
  check_state(state);
  const Plan planned = plan(state, tokens, width, counts, last);
  run_decoder(state, planned, counts,
              [&](ForwardPass& pass) { write_logits(pass, planned, logits); });
}

void Model::likeliest(State& state, const std::vector<int>& tokens, int width,
                      const std::vector<int>& forbidden, std::int64_t* best) {
  const State::ExclusiveUse use(state);
  check_state(state);
  check_tokens(forbidden);
  const std::vector<int> counts(state.sequences.size(), width);
  const Plan planned = plan(state, tokens, width, counts, false);
  run_decoder(state, planned, counts, [&](ForwardPass& pass) {
    argmax_tokens(pass, forbidden, best + (pass.rows - planned.rows.data()));
  });
}

template <typename UseHidden>
void Model::run_decoder(State& state, const Plan& plan, const std::vector<int>& counts,
                        const UseHidden& use_hidden) {
  if (plan.rows.empty()) return;
  CacheViews views = view(state, &Caches::decoder);
  std::vector<KvCache*> drafter_caches;
  if (state.drafting()) {
    drafter_->reserve_states(state, counts);
    drafter_caches = view(state, &Caches::drafter).caches;
  }
  run(
      plan.rows, state.size(), kRowsAtOnce,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, decoder_.shape(), count,
                        std::max(plan.longest, views.longest));
        own.logits.reserve(std::max<std::size_t>(kLogitsAtOnce, area(count, 4 * kPanel)));
        shared.context.reserve(area(count, std::max(spec_.width, 2 * team_.threads())));
        if (state.drafting()) drafter_->reserve_inputs(shared, own, count);
      },
      [&](ForwardPass& pass, int) {
        views.attach(pass, state.angles.get());
        embed(pass, tokens_, position_table_, state.sines.get());
        if (state.drafting()) {
          decoder_.run(pass, [&](int layer) { drafter_->tap(pass, layer); });
          pass.angles = state.drafter_angles.get();
          drafter_->write_injected_kv(pass, state, drafter_caches);
        } else {
          decoder_.run(pass);
        }
        use_hidden(pass);
      });
  for (int b = 0; b < state.size(); ++b) {
    Sequence& sequence = *state.sequences[static_cast<std::size_t>(b)];
    sequence.length_before = sequence.length;
    sequence.length += counts[static_cast<std::size_t>(b)];
  }
}

void Model::write_logits(ForwardPass& pass, const Plan& plan, float* logits) const {
  const int first = static_cast<int>(pass.rows - plan.rows.data()), width = spec_.width;
  const auto begin = std::lower_bound(plan.scored.begin(), plan.scored.end(), first);
  const auto end = std::lower_bound(begin, plan.scored.end(), first + pass.count);
  const int wanted = static_cast<int>(end - begin);
  if (wanted == 0) return;
  if (wanted < pass.count)
    for (int n = 0; n < wanted; ++n)  // a row only ever moves to the front
      std::copy_n(pass.own.stream.data() + area(begin[n] - first, width), width,
                  pass.own.stream.data() + area(n, width));
  pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data(), wanted, width, width);
  const Range mine = pass.worker.share(head_.panels());
  head_.multiply(kernel_, pass.own.operand, mine, logits + mine.begin * kPanel, spec_.words,
                 plan.outputs.data() + (begin - plan.scored.begin()));
}

// Each worker takes the argmax of its own columns, some at a time so that their logits stay in the
// cache; the first worker then compares what they found.
void Model::argmax_tokens(ForwardPass& pass, const std::vector<int>& forbidden,
                          std::int64_t* best) const {
  const int width = spec_.width, workers = pass.worker.count, step = head_panels(pass.count);
  const Range panels = pass.worker.share(head_.panels());
  float* logits = pass.own.logits.data();
  // [row][worker][value, index], in a buffer that is free: the last barrier was that of a
  // feed-forward (E in layer.cpp) or later, after which `sublayer_out` is still read, `context` is
  // not.
  float* found = pass.shared.context.data();
  const auto found_by = [&](int r) { return found + 2 * area(r * workers + pass.worker.index, 1); };
  for (int r = 0; r < pass.count; ++r) {
    found_by(r)[0] = -3e38f;
    found_by(r)[1] = 0.0f;
  }
  pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width, width);
  for (int panel = panels.begin; panel < panels.end; panel += step) {
    const Range some{panel, std::min(panel + step, panels.end)};
    const int begin = panel * kPanel;
    const int columns = std::min(some.end * kPanel, spec_.words) - begin;
    head_.multiply(kernel_, pass.own.operand, some, logits, step * kPanel);
    for (int r = 0; r < pass.count; ++r) {
      float* row = logits + area(r, step * kPanel);
      for (int token : forbidden)
        if (token >= begin && token < begin + columns) row[token - begin] = -3e38f;
      const int index = kernel_.rows->argmax(row, columns);
      float* mine = found_by(r);
      if (!(row[index] > mine[0])) continue;  // nor where it is NaN
      mine[0] = row[index];
      mine[1] = static_cast<float>(begin + index);
    }
  }
  pass.worker.wait();  // `found` is whole: the first worker reads what all have found
  if (pass.worker.index != 0) return;
  for (int r = 0; r < pass.count; ++r) {
    const float* one = found + 2 * area(r * workers, 1);
    int leader = 0;
    for (int w = 1; w < workers; ++w)
      if (one[2 * w] > one[2 * leader]) leader = w;
    best[r] = static_cast<std::int64_t>(one[2 * leader + 1]);
  }
}

}  // namespace outrider
