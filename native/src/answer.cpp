// Answering questions: all workers compute scores, each its own columns; then each answers for some
// rows. A row is answered by one worker from one row of scores, so its bits do not depend on how
// many there are.
#include "model.h"

#include "run_decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace outrider {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kSorted = 64;  // tokens that are kept in order while a row is read; more are sorted

// Scores of one row, and memory to answer with.
struct Scores {
  const RowFunctions& rows;
  float* logits;
  int words;
  WorkerBuffers& own;
};

void forbid(Scores& scores, const std::vector<int>& tokens) {
  for (const int token : tokens) scores.logits[token] = kNever;
}

// What a sequence must not say at a place; `n` is its number in the question.
void forbid(Scores& scores, const Forbidden& forbidden, std::size_t n, int place) {
  forbid(scores, forbidden.always);
  if (!forbidden.by_sequence.empty()) forbid(scores, forbidden.by_sequence[n]);
  if (!forbidden.early.empty() && place < forbidden.early[n]) forbid(scores, forbidden.ends);
}

// Sorts the best `count` of the first `some` tokens of `own.order`, the earlier of equals first, and
// leaves their scores in `own.best`.
void sort_best(Scores& scores, int count, int some) {
  int* order = scores.own.order.data();
  const auto better = [&](int left, int right) {
    const float a = scores.logits[left], b = scores.logits[right];
    const float x = std::isnan(a) ? kNever : a, y = std::isnan(b) ? kNever : b;
    return x > y || (x == y && left < right);
  };
  if (count == some)
    std::sort(order, order + some, better);
  else
    std::partial_sort(order, order + count, order + some, better);
  for (int c = 0; c < count; ++c) scores.own.best.data()[c] = scores.logits[order[c]];
}

// Leaves the best `count` tokens in `own.order` and their scores in `own.best`.
void find_best(Scores& scores, int count) {
  int* order = scores.own.order.data();
  if (count <= kSorted)
    return scores.rows.top_k(scores.logits, scores.words, count, order, scores.own.best.data());
  std::iota(order, order + scores.words, 0);
  sort_best(scores, count, scores.words);
}

// The place that a number falls on: the first whose cumulative mass reaches (1 - uniform) of all.
int invert(const double* mass, int count, double uniform) {
  double total = 0.0, below = 0.0;
  for (int c = 0; c < count; ++c) total += mass[c];
  const double level = (1.0 - uniform) * total;
  for (int c = 0; c + 1 < count; ++c)
    if (!((below += mass[c]) < level)) return c;
  return count - 1;
}

// How many of `count` masses, largest first, are left: the one that crosses top_p is still in.
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

// Leaves the tokens that top_p may leave in `own.order`, best first, and returns how many. All below
// a words-th part of 1 - top_p have less than that together, so that the others reach top_p.
int find_nucleus(Scores& scores, double total, double top_p) {
  const double least = (1.0 - top_p) * total / scores.words;
  const double* mass = scores.own.masses.data();
  int* order = scores.own.order.data();
  int count = 0;
  for (int token = 0; token < scores.words; ++token) {
    order[count] = token;
    count += mass[token] >= least;
  }
  sort_best(scores, count, count);
  return count;
}

int draw(Scores& scores, const Question& question, double uniform) {
  const int words = scores.words;
  double* mass = scores.own.masses.data();
  const bool all = question.top_p >= 1.0;
  int count = std::min(question.top_k, words);
  double total = 0.0;
  if (count == 0) {
    scores.rows.masses(scores.logits, words, question.temperature, mass);
    if (all) return invert(mass, words, uniform);
    total = sum_of(mass, words);
    count = find_nucleus(scores, total, question.top_p);
  } else {
    find_best(scores, count);
  }
  scores.rows.masses(scores.own.best.data(), count, question.temperature, mass);
  if (question.top_k > 0) total = sum_of(mass, count);
  if (!all) count = count_within(mass, count, total, question.top_p);
  return scores.own.order.data()[count == 0 ? 0 : invert(mass, count, uniform)];
}

// The log of what some tokens have together.
float log_total_of(Scores& scores, const std::vector<int>& tokens) {
  float* some = scores.own.best.data();
  for (std::size_t n = 0; n < tokens.size(); ++n) some[n] = scores.logits[tokens[n]];
  return scores.rows.log_total(some, static_cast<int>(tokens.size()));
}

// Answers about one place of one sequence, the nth of the question.
void answer_place(Scores& scores, const Question& question, std::size_t n, int place,
                  Answer& answer) {
  const bool scored = question.log_probs || question.kind == Question::Kind::top ||
                      question.kind == Question::Kind::given;
  const float total = scored ? scores.rows.log_total(scores.logits, scores.words) : 0.0f;
  const auto at = static_cast<std::size_t>(place);
  int token = 0;
  switch (question.kind) {
    case Question::Kind::given: {
      token = question.given[n][at];
      const bool any = question.ends.size() > 1 && token == question.ends[0];
      const float score = any ? log_total_of(scores, question.ends) : scores.logits[token];
      answer.log_probs[n][at] = score - total;
      return;
    }
    case Question::Kind::top: {
      // Ranked by what is answered: scores that are nearly equal may be so after rounding.
      scores.rows.subtract(scores.logits, total, scores.words);
      forbid(scores, question.forbidden, n, place);
      const auto count = answer.tokens[n].size();
      find_best(scores, static_cast<int>(count));
      std::copy_n(scores.own.order.data(), count, answer.tokens[n].begin());
      std::copy_n(scores.own.best.data(), count, answer.log_probs[n].begin());
      return;
    }
    case Question::Kind::likeliest:
      forbid(scores, question.forbidden, n, place);
      token = scores.rows.argmax(scores.logits, scores.words);
      break;
    case Question::Kind::draw:
      forbid(scores, question.forbidden, n, place);
      token = draw(scores, question, question.uniform[n]);
      break;
  }
  answer.tokens[n][at] = token;
  if (question.log_probs) answer.log_probs[n][at] = scores.logits[token] - total;
}

}  // namespace

// A row of a pass that is asked about.
struct Model::Asked {
  int row = 0;
  std::size_t question = 0, n = 0;
  int place = 0;
};

struct Model::Questions {
  const State& state;
  const std::vector<Question>& questions;
  const std::vector<Asked>& asked;  // in the order of the rows
  std::vector<Answer>& answers;     // with room for everything
  bool draws;
};

void Model::check_question(const Question& question, const State& state) const {
  const std::size_t asked = question.sequences.size();
  for (const int sequence : question.sequences)
    if (sequence < 0 || sequence >= state.size())
      throw std::invalid_argument("a question is about a row that is not there");
  if (question.places < 0) throw std::invalid_argument("a question is about places below zero");
  check_forbidden(question.forbidden, asked);
  check_tokens(question.ends);
  if (question.ends.size() > static_cast<std::size_t>(spec_.words))
    throw std::invalid_argument("a question names more end tokens than there are words");
  switch (question.kind) {
    case Question::Kind::likeliest:
      return;
    case Question::Kind::top:
      if (question.count < 1 || question.places > 1)
        throw std::invalid_argument("top: at least one token, at one place");
      return;
    case Question::Kind::draw:
      if (question.uniform.size() != asked || question.places > 1)
        throw std::invalid_argument("draw: one number for each row, at one place");
      if (!(question.temperature > 0.0) || question.top_k < 0 || !(question.top_p >= 0.0))
        throw std::invalid_argument("draw: temperature, top_k and top_p must be above zero");
      return;
    case Question::Kind::given:
      if (question.given.size() != asked)
        throw std::invalid_argument("log_probs: tokens for each row");
      for (const std::vector<int>& tokens : question.given) {
        check_tokens(tokens);
        if (tokens.size() < static_cast<std::size_t>(question.places))
          throw std::invalid_argument("log_probs: a token for each place");
      }
      return;
  }
}

std::vector<Answer> Model::answer(State& state, const std::vector<std::vector<int>>& tokens,
                                  const std::vector<Question>& questions, bool last) {
  const State::ExclusiveUse use(state);
  check_state(state);
  return run_answer(state, tokens, questions, last);
}

std::vector<Answer> Model::run_answer(State& state, const std::vector<std::vector<int>>& tokens,
                                      const std::vector<Question>& questions, bool last) {
  const Plan planned = plan(state, tokens);
  std::vector<int> first(1, 0);
  for (const int count : planned.counts) first.push_back(first.back() + count);
  std::vector<bool> taken(planned.counts.size(), false);
  std::vector<Answer> answers(questions.size());
  std::vector<Asked> asked;
  bool draws = false;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    const Question& question = questions[q];
    check_question(question, state);
    draws = draws || question.kind == Question::Kind::draw;
    const bool ranks = question.kind == Question::Kind::top;
    for (std::size_t n = 0; n < question.sequences.size(); ++n) {
      const auto sequence = static_cast<std::size_t>(question.sequences[n]);
      if (taken[sequence]) throw std::invalid_argument("two questions are about one row");
      taken[sequence] = true;
      const int count = planned.counts[sequence];
      const int places = std::min(question.places, last ? std::min(count, 1) : count);
      const int begin = last ? first[sequence + 1] - places : first[sequence];
      for (int t = 0; t < places; ++t) asked.push_back({begin + t, q, n, t});
      const auto size = static_cast<std::size_t>(
          ranks && places > 0 ? std::min(question.count, spec_.words) : places);
      const bool named = question.kind != Question::Kind::given;
      answers[q].tokens.emplace_back(named ? size : 0);
      answers[q].log_probs.emplace_back(!named || ranks || question.log_probs ? size : 0);
    }
  }
  std::sort(asked.begin(), asked.end(),
            [](const Asked& left, const Asked& right) { return left.row < right.row; });
  const Questions all{state, questions, asked, answers, draws};
  run_decoder(
      state, planned,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_answers(shared, own, all, count);
      },
      [&](ForwardPass& pass) {
        answer_rows(pass, static_cast<int>(pass.rows - planned.rows.data()), all);
      });
  return answers;
}

int Model::scores_at_once() const {
  constexpr int kScores = 1 << 22;  // numbers, 16 MiB
  return std::max(16, kScores / spec_.words);
}

void Model::reserve_answers(SharedBuffers& shared, WorkerBuffers& own, const Questions& all,
                            int rows) const {
  if (all.asked.empty()) return;
  const int most = std::min({rows, static_cast<int>(all.asked.size()), scores_at_once()});
  shared.scores.reserve(area(most, spec_.words));
  own.order.reserve(static_cast<std::size_t>(spec_.words));
  own.best.reserve(static_cast<std::size_t>(spec_.words));
  if (all.draws) own.masses.reserve(static_cast<std::size_t>(spec_.words));
}

void Model::answer_rows(ForwardPass& pass, int first, const Questions& all) const {
  const auto before = [](const Asked& one, int row) { return one.row < row; };
  const auto begin = std::lower_bound(all.asked.begin(), all.asked.end(), first, before);
  const auto end = std::lower_bound(begin, all.asked.end(), first + pass.count, before);
  const int wanted = static_cast<int>(end - begin), width = spec_.width, step = scores_at_once();
  for (int n = 0; n < wanted; ++n)  // a row only ever moves to the front
    if (begin[n].row - first != n)
      std::copy_n(pass.own.stream.data() + area(begin[n].row - first, width), width,
                  pass.own.stream.data() + area(n, width));
  float* logits = pass.shared.scores.data();
  for (int done = 0; done < wanted; done += step) {
    const int some = std::min(step, wanted - done);
    pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data() + area(done, width),
                          some, width, width);
    score(
        pass, all.state, some, [&](int n) { return begin[done + n].row - first; }, logits);
    pass.worker.wait();  // `scores` are whole: each worker answers for some rows
    const Range rows = pass.worker.share(some);
    for (int r = rows.begin; r < rows.end; ++r) {
      const Asked& one = begin[done + r];
      Scores scores{*kernel_.rows, logits + area(r, spec_.words), spec_.words, pass.own};
      answer_place(scores, all.questions[one.question], one.n, one.place,
                   all.answers[one.question]);
    }
    pass.worker.wait();  // `scores` are free for the next rows
  }
}

}  // namespace outrider
