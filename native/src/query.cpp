#include "query.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace outrider {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kMaxPartialSort = 64;  // larger counts sort the whole vocabulary

void forbid(ScoreRow& scores, const std::vector<int>& tokens) {
  for (const int token : tokens) scores.logits[token] = kNever;
}

void forbid(ScoreRow& scores, const Forbidden& forbidden, std::size_t n, int place) {
  forbid(scores, forbidden.always);
  if (!forbidden.early.empty() && place < forbidden.early[n]) forbid(scores, forbidden.ends);
}

// Sorts the best `count` of the first `size` tokens of `own.order`, the first of equals first, and
// writes their scores to `own.best`.
void sort_best(ScoreRow& scores, int count, int size) {
  int* order = scores.own.order.data();
  const auto better = [&](int left, int right) {
    const float a = scores.logits[left], b = scores.logits[right];
    const float x = std::isnan(a) ? kNever : a, y = std::isnan(b) ? kNever : b;
    return x > y || (x == y && left < right);
  };
  if (count == size)
    std::sort(order, order + size, better);
  else
    std::partial_sort(order, order + count, order + size, better);
  for (int c = 0; c < count; ++c) scores.own.best.data()[c] = scores.logits[order[c]];
}

// Writes the best `count` tokens to `own.order` and their scores to `own.best`.
void find_best(ScoreRow& scores, int count) {
  int* order = scores.own.order.data();
  if (count <= kMaxPartialSort)
    return scores.rows.top_k(scores.logits, scores.vocab_size, count, order,
                             scores.own.best.data());
  std::iota(order, order + scores.vocab_size, 0);
  sort_best(scores, count, scores.vocab_size);
}

// Inverts the cumulative distribution: the first index whose cumulative mass reaches (1 - uniform)
// of the total.
int invert(const double* mass, int count, double uniform) {
  double total = 0.0, below = 0.0;
  for (int c = 0; c < count; ++c) total += mass[c];
  const double level = (1.0 - uniform) * total;
  for (int c = 0; c + 1 < count; ++c)
    if (!((below += mass[c]) < level)) return c;
  return count - 1;
}

// The number of leading masses (in descending order) within top_p, including the one that crosses
// it.
int count_within(const double* mass, int count, double total, double top_p) {
  double sum = 0.0;
  for (int c = 0; c < count; ++c) {
    const double prob = mass[c] / total;
    sum += prob;
    if (!(sum - prob < top_p)) return c;
  }
  return count;
}

double sum_of(const double* mass, int count) {
  double total = 0.0;
  for (int c = 0; c < count; ++c) total += mass[c];
  return total;
}

// Writes a superset of the top_p tokens to `own.order`, best first, and returns its size. Tokens
// with a probability below (1 - top_p) / vocab_size sum to less than 1 - top_p, so the others reach
// top_p.
int find_nucleus(ScoreRow& scores, double total, double top_p) {
  const double least = (1.0 - top_p) * total / scores.vocab_size;
  const double* mass = scores.own.masses.data();
  int* order = scores.own.order.data();
  int count = 0;
  for (int token = 0; token < scores.vocab_size; ++token) {
    order[count] = token;
    count += mass[token] >= least;
  }
  sort_best(scores, count, count);
  return count;
}

int sample(ScoreRow& scores, const Query& query, double uniform) {
  const int vocab_size = scores.vocab_size;
  double* mass = scores.own.masses.data();
  const bool all = query.top_p >= 1.0;
  int count = std::min(query.top_k, vocab_size);
  double total = 0.0;
  if (count == 0) {
    scores.rows.masses(scores.logits, vocab_size, query.temperature, mass);
    if (all) return invert(mass, vocab_size, uniform);
    total = sum_of(mass, vocab_size);
    count = find_nucleus(scores, total, query.top_p);
  } else {
    find_best(scores, count);
  }
  scores.rows.masses(scores.own.best.data(), count, query.temperature, mass);
  if (query.top_k > 0) total = sum_of(mass, count);
  if (!all) count = count_within(mass, count, total, query.top_p);
  return scores.own.order.data()[count == 0 ? 0 : invert(mass, count, uniform)];
}

// log sum exp of the scores of some tokens.
float log_total_of(ScoreRow& scores, const std::vector<int>& tokens) {
  float* some = scores.own.best.data();
  for (std::size_t n = 0; n < tokens.size(); ++n) some[n] = scores.logits[tokens[n]];
  return scores.rows.log_total(some, static_cast<int>(tokens.size()));
}

constexpr int kLogitsAtOnce = 8192;  // scores compared at once, which fit into the CPU cache
constexpr int kRecord = 3;           // floats that a worker records for a row
constexpr int kFirst = 8;            // panels with the largest bounds, which are scored first

// Panels of the head that are computed at once for this number of rows.
int head_panels(int rows) { return std::max(4, kLogitsAtOnce / (rows * kPanel)); }

// One worker's search for the argmax of each row, in the worker's columns.
struct ArgmaxSearch {
  ForwardPass& pass;
  const State& state;
  const Forbidden& forbidden;

  // A worker's best score, its token, and the best score after screening. The records are in
  // `context`, which is free: the last barrier was E of a feed-forward (layer.cpp) or later, after
  // which `sublayer_out` is still read but `context` is not.
  float* record(int row, int worker) const {
    return pass.shared.context.data() + kRecord * area(row * pass.worker.count + worker, 1);
  }
  float* mine(int row) const { return record(row, pass.worker.index); }

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
    if (!forbidden.early.empty() &&
        pass.rows[r].position - state.sequences[sequence]->length < forbidden.early[sequence])
      each(forbidden.ends);
  }

  // Scores the tokens of some panels, at most `step`, for the rows of the loaded operand.
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
          list == nullptr ? column : list->tokens[static_cast<std::size_t>(column)]);
      // The first of equals wins in any order of panels; NaN never wins.
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

  // Scores the panels with the largest bounds, and then all panels whose bound is not below the
  // best score so far.
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
      for (int r = 0; r < count; ++r)  // not to be scored again
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
    pass.worker.wait();  // the best scores of all workers are recorded
    float known[kMaxScreenedRows];
    for (int r = 0; r < count; ++r) {
      known[r] = kUnlisted;
      for (int w = 0; w < pass.worker.count; ++w)
        known[r] = std::max(known[r], record(rows.begin + r, w)[2]);
    }
    const auto is_left = [&](int n) {
      for (int r = 0; r < count; ++r)
        if (!(bounds(r)[n] < known[r])) return true;  // also for NaN
      return false;
    };
    for (Range some; some.begin < mine_count; some.begin = std::max(some.end, some.begin + 1)) {
      some.end = some.begin;  // adjacent panels are scored together
      while (some.end < mine_count && some.end - some.begin < step && is_left(some.end)) ++some.end;
      if (some.end > some.begin) score_some(some);
    }
  }

  // The best token of all workers.
  int best(int row) const {
    int leader = 0;
    for (int w = 1; w < pass.worker.count; ++w)
      if (record(row, w)[0] > record(row, leader)[0]) leader = w;
    return static_cast<int>(record(row, leader)[1]);
  }
};

// Whether this number of rows is screened before the head is computed.
bool is_screened(const Model& model, int rows) {
  return !model.screen.empty() && rows <= kMaxScreenedRows;
}

}  // namespace

void check_forbidden(const Forbidden& forbidden, const Model& model, std::size_t sequences) {
  model.check_tokens(forbidden.always);
  model.check_tokens(forbidden.ends);
  if (!forbidden.early.empty() && forbidden.early.size() != sequences)
    throw std::invalid_argument("`early` must have one number for each row");
}

void check_query(const Query& query, const Model& model, const State& state) {
  const std::size_t sequences = query.sequences.size();
  for (const int sequence : query.sequences)
    if (sequence < 0 || sequence >= state.size())
      throw std::invalid_argument("query: no row " + std::to_string(sequence));
  if (query.places < 0) throw std::invalid_argument("query: places is negative");
  check_forbidden(query.forbidden, model, sequences);
  model.check_tokens(query.ends);
  if (query.ends.size() > static_cast<std::size_t>(model.spec.vocab_size))
    throw std::invalid_argument("query: more end tokens than tokens in the vocabulary");
  switch (query.kind) {
    case Query::Kind::argmax:
      return;
    case Query::Kind::top_k:
      if (query.count < 1 || query.places > 1)
        throw std::invalid_argument("top_k: expected at least one token, at one place");
      return;
    case Query::Kind::sample:
      if (query.uniform.size() != sequences || query.places > 1)
        throw std::invalid_argument("sample: expected one number for each row, at one place");
      if (!(query.temperature > 0.0) || query.top_k < 0 || !(query.top_p >= 0.0))
        throw std::invalid_argument("sample: temperature, top_k and top_p must be above zero");
      return;
    case Query::Kind::log_probs:
      if (query.given.size() != sequences)
        throw std::invalid_argument("log_probs: expected tokens for each row");
      for (const std::vector<int>& tokens : query.given) {
        model.check_tokens(tokens);
        if (tokens.size() < static_cast<std::size_t>(query.places))
          throw std::invalid_argument("log_probs: expected a token for each place");
      }
      return;
  }
}

void reserve_answer(WorkerBuffers& own, const Model& model, bool samples) {
  const auto vocab_size = static_cast<std::size_t>(model.spec.vocab_size);
  own.order.reserve(vocab_size);
  own.best.reserve(vocab_size);
  if (samples) own.masses.reserve(vocab_size);
}

void answer_place(ScoreRow& scores, const Query& query, std::size_t n, int place, Answer& answer) {
  const bool scored =
      query.log_probs || query.kind == Query::Kind::top_k || query.kind == Query::Kind::log_probs;
  const float total = scored ? scores.rows.log_total(scores.logits, scores.vocab_size) : 0.0f;
  const auto at = static_cast<std::size_t>(place);
  int token = 0;
  switch (query.kind) {
    case Query::Kind::log_probs: {
      token = query.given[n][at];
      const bool any = query.ends.size() > 1 && token == query.ends[0];
      const float score = any ? log_total_of(scores, query.ends) : scores.logits[token];
      answer.log_probs[n][at] = score - total;
      return;
    }
    case Query::Kind::top_k: {
      // Ranked by the rounded log-probabilities: nearly equal scores may be equal after rounding.
      scores.rows.subtract(scores.logits, total, scores.vocab_size);
      forbid(scores, query.forbidden, n, place);
      const auto count = answer.tokens[n].size();
      find_best(scores, static_cast<int>(count));
      std::copy_n(scores.own.order.data(), count, answer.tokens[n].begin());
      std::copy_n(scores.own.best.data(), count, answer.log_probs[n].begin());
      return;
    }
    case Query::Kind::argmax:
      forbid(scores, query.forbidden, n, place);
      token = scores.rows.argmax(scores.logits, scores.vocab_size);
      break;
    case Query::Kind::sample:
      forbid(scores, query.forbidden, n, place);
      token = sample(scores, query, query.uniform[n]);
      break;
  }
  answer.tokens[n][at] = token;
  if (query.log_probs) answer.log_probs[n][at] = scores.logits[token] - total;
}

void reserve_argmax(SharedBuffers& shared, WorkerBuffers& own, const Model& model, int rows,
                    int threads) {
  own.logits.reserve(std::max<std::size_t>(kLogitsAtOnce, area(rows, 4 * kPanel)));
  shared.context.reserve(area(rows, std::max(model.spec.width, kRecord * threads)));
  if (is_screened(model, 1)) model.screen.reserve(own.screen, std::min(rows, kMaxScreenedRows));
}

void find_argmax(ForwardPass& pass, const Model& model, const State& state,
                 const Forbidden& forbidden, int* best) {
  const ArgmaxSearch search{pass, state, forbidden};
  search.begin();
  const auto list_of = [&](int r) { return state.shortlist(pass.rows[r].sequence); };
  for (Range rows; rows.begin < pass.count; rows.begin = rows.end) {  // with the same shortlist
    const Shortlist* list = list_of(rows.begin);
    for (rows.end = rows.begin + 1; rows.end < pass.count && list_of(rows.end) == list;) ++rows.end;
    search.load(model.spec.precision, rows, model.spec.width);
    if (list == nullptr && is_screened(model, rows.end - rows.begin))
      search.score_screened(model.head, model.screen, rows, model.spec.width);
    else
      search.score_all(list == nullptr ? model.head : list->head, list, rows);
  }
  pass.worker.wait();  // all workers have recorded their best tokens
  if (pass.worker.index != 0) return;
  for (int r = 0; r < pass.count; ++r) best[r] = search.best(r);
}

}  // namespace outrider
