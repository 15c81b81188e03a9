// Naming the likeliest word after each token, and nothing else: scores are looked at while they are
// in the cache, and those of a large head are bounded before they are computed (screen.h).
#include "model.h"

#include "run_decoder.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {
namespace {

constexpr int kLogitsAtOnce = 8192;  // logits that are looked at together; the caches keep so many
constexpr int kFound = 3;            // numbers that a worker writes down for a row
constexpr int kFirst = 8;            // panels with the largest bounds, which are scored at once

// Panels of the head that are computed at a time for so many rows.
int head_panels(int rows) { return std::max(4, kLogitsAtOnce / (rows * kPanel)); }

// The search of one worker for the likeliest word of each row, in its own columns.
struct Search {
  ForwardPass& pass;
  const State& state;
  const Forbidden& forbidden;

  // What a worker has found: a score, its token, and which score it knew after screening. They lie
  // in a buffer that is free: the last barrier was that of a feed-forward (E in layer.cpp) or
  // later, after which `sublayer_out` is still read, `context` is not.
  float* found(int row, int worker) const {
    return pass.shared.context.data() + kFound * area(row * pass.worker.count + worker, 1);
  }
  float* mine(int row) const { return found(row, pass.worker.index); }

  void begin() const {
    for (int r = 0; r < pass.count; ++r) {
      mine(r)[0] = kUnlisted;
      mine(r)[1] = 0.0f;
    }
  }

  void load(Precision precision, Range rows, int width) const {
    pass.own.operand.load(pass.kernel, precision, pass.own.stream.data() + area(rows.begin, width),
                          rows.end - rows.begin, width, width);
  }

  void forbid(int r, float* scores, Range columns, const Shortlist* list) const {
    const auto each = [&](const std::vector<int>& tokens) {
      for (const int token : tokens) {
        const int column = list == nullptr ? token : list->find(token);
        if (column >= columns.begin && column < columns.end)
          scores[column - columns.begin] = kUnlisted;
      }
    };
    each(forbidden.always);
    const auto sequence = static_cast<std::size_t>(pass.rows[r].sequence);
    if (!forbidden.by_sequence.empty()) each(forbidden.by_sequence[sequence]);
    if (!forbidden.early.empty() &&
        pass.rows[r].position - state.sequences[sequence]->length < forbidden.early[sequence])
      each(forbidden.ends);
  }

  // Scores the words of some panels, at most `step`, for the rows that the operand holds.
  void score(const Matrix& head, const Shortlist* list, Range rows, Range panels, int step) const {
    float* logits = pass.own.logits.data();
    head.multiply(pass.kernel, pass.own.operand, panels, logits, step * kPanel);
    const Range columns{panels.begin * kPanel, std::min(panels.end * kPanel, head.columns())};
    for (int r = rows.begin; r < rows.end; ++r) {
      float* scores = logits + area(r - rows.begin, step * kPanel);
      forbid(r, scores, columns, list);
      const int index = pass.kernel.rows->argmax(scores, columns.end - columns.begin);
      const int column = columns.begin + index;
      const auto token = static_cast<float>(
          list == nullptr ? column : list->words[static_cast<std::size_t>(column)]);
      // Of equals the first stays, in whatever order they come; NaN never does.
      float* best = mine(r);
      if (!(scores[index] > best[0] || (scores[index] == best[0] && token < best[1]))) continue;
      best[0] = scores[index];
      best[1] = token;
    }
  }

  void score_all(const Matrix& head, const Shortlist* list, Range rows) const {
    const Range panels = pass.worker.share(head.panels());
    const int step = head_panels(rows.end - rows.begin);
    for (int panel = panels.begin; panel < panels.end; panel += step)
      score(head, list, rows, {panel, std::min(panel + step, panels.end)}, step);
  }

  // Scores the words whose bounds do not lie below a score that is known, which is the best of
  // those with the largest bounds.
  void score_screened(const Matrix& head, const Screen& screen, Range rows, int width) const {
    const Range panels = pass.worker.share(head.panels());
    const int count = rows.end - rows.begin, mine_count = panels.end - panels.begin;
    ScreenBuffers& own = pass.own.screen;
    screen.bound(pass.kernel, own, pass.own.stream.data() + area(rows.begin, width), count, width,
                 panels);
    const auto bounds = [&](int r) { return own.bounds.data() + area(r, mine_count); };
    const int step = head_panels(count);
    const auto score_some = [&](Range some) {
      score(head, nullptr, rows, {panels.begin + some.begin, panels.begin + some.end}, step);
      for (int r = 0; r < count; ++r)  // they need not be looked at again
        std::fill(bounds(r) + some.begin, bounds(r) + some.end, kUnlisted);
    };
    for (int r = 0; r < count; ++r) {
      int first[kFirst];
      float largest[kFirst];
      const int some = std::min(kFirst, mine_count);
      pass.kernel.rows->top_k(bounds(r), mine_count, some, first, largest);
      for (int n = 0; n < some && !(largest[n] < mine(rows.begin + r)[0]); ++n)
        score_some({first[n], first[n] + 1});
      mine(rows.begin + r)[2] = mine(rows.begin + r)[0];
    }
    pass.worker.wait();  // what every worker knows is written down
    float known[kScreened];
    for (int r = 0; r < count; ++r) {
      known[r] = kUnlisted;
      for (int w = 0; w < pass.worker.count; ++w)
        known[r] = std::max(known[r], found(rows.begin + r, w)[2]);
    }
    const auto is_left = [&](int n) {
      for (int r = 0; r < count; ++r)
        if (!(bounds(r)[n] < known[r])) return true;  // also where a row is NaN
      return false;
    };
    for (Range some; some.begin < mine_count; some.begin = std::max(some.end, some.begin + 1)) {
      some.end = some.begin;  // neighbours are scored together
      while (some.end < mine_count && some.end - some.begin < step && is_left(some.end)) ++some.end;
      if (some.end > some.begin) score_some(some);
    }
  }

  // The best of what all workers have found.
  int best(int row) const {
    int leader = 0;
    for (int w = 1; w < pass.worker.count; ++w)
      if (found(row, w)[0] > found(row, leader)[0]) leader = w;
    return static_cast<int>(found(row, leader)[1]);
  }
};

}  // namespace

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
        shared.context.reserve(area(count, std::max(spec_.width, kFound * team_.threads())));
        if (screens(1)) screen_.reserve(own.screen, std::min(count, kScreened));
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

// Each worker searches its own columns; the first then compares what they found.
void Model::argmax_tokens(ForwardPass& pass, const State& state, const Forbidden& forbidden,
                          int* best) const {
  const Search search{pass, state, forbidden};
  search.begin();
  const auto list_of = [&](int r) { return state.shortlist(pass.rows[r].sequence); };
  for (Range rows; rows.begin < pass.count; rows.begin = rows.end) {  // of one shortlist, or none
    const Shortlist* list = list_of(rows.begin);
    for (rows.end = rows.begin + 1; rows.end < pass.count && list_of(rows.end) == list;) ++rows.end;
    search.load(spec_.precision, rows, spec_.width);
    if (list == nullptr && screens(rows.end - rows.begin))
      search.score_screened(head_, screen_, rows, spec_.width);
    else
      search.score_all(list == nullptr ? head_ : list->head, list, rows);
  }
  pass.worker.wait();  // what all have found is written down: the first worker reads it
  if (pass.worker.index != 0) return;
  for (int r = 0; r < pass.count; ++r) best[r] = search.best(r);
}

}  // namespace outrider
