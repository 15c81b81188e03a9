// Batches. A sequence's numbers are the same to the bit on every instruction set, with any number
// of threads, beside any other sequences, in blocks or one by one, and after tokens were rolled
// back.
#include "check.h"
#include "checks.h"
#include "examples.h"

#include <algorithm>
#include <numeric>
#include <thread>

namespace outrider {
namespace {

// A batch of sequences on their way, in blocks of any size.
class Batch {
 public:
  Batch(Model& model, const TinyModel& tiny, std::vector<Example> examples, Dice& dice)
      : model_(model), tiny_(tiny), dice_(dice), examples_(std::move(examples)) {
    state_ = model.encode(sources_of(examples_), kRoom, true, tiny.ctc.has_value());
    answers_.resize(examples_.size());
    owner_.resize(examples_.size());
    std::iota(owner_.begin(), owner_.end(), std::size_t{0});
    const auto found = slots(model, *state_, tiny);
    for (std::size_t b = 0; b < answers_.size(); ++b) answers_[b].slots = found[b];
  }

  std::vector<Answer> run() {
    while (std::any_of(owner_.begin(), owner_.end(), [&](std::size_t n) { return left(n) > 0; })) {
      draft_all();
      extend_some();
      if (dice_.chance(0.3)) shuffle();
    }
    return answers_;
  }

 private:
  int done(std::size_t n) const { return static_cast<int>(answers_[n].logits.size()); }
  int left(std::size_t n) const { return static_cast<int>(examples_[n].tokens.size()) - done(n); }

  void draft_all() {
    std::vector<int> last;
    for (std::size_t n : owner_)
      last.push_back(left(n) > 0 ? examples_[n].tokens[static_cast<std::size_t>(done(n))] : 0);
    const auto found = draft(model_, *state_, last);
    for (std::size_t b = 0; b < owner_.size(); ++b) {
      drafts_.resize(answers_.size());
      drafts_[owner_[b]] = found[b];
    }
  }

  // Gives each sequence some of its tokens and some wrong ones after them, which are taken back.
  void extend_some() {
    const int width = dice_.pick(1, 6);
    std::vector<int> tokens, counts, right, lengths;
    for (std::size_t n : owner_) {
      right.push_back(dice_.pick(0, std::min(width, left(n))));
      const int room = kRoom - done(n);
      counts.push_back(std::min(room, dice_.pick(right.back(), width)));
      lengths.push_back(done(n) + right.back());
      for (int t = 0; t < width; ++t)
        tokens.push_back(t < right.back()
                             ? examples_[n].tokens[static_cast<std::size_t>(done(n) + t)]
                             : dice_.pick(0, tiny_.spec.words - 1));
    }
    const auto words = static_cast<std::size_t>(tiny_.spec.words);
    std::vector<float> logits(tokens.size() * words, -7.0f);
    model_.extend(*state_, tokens, width, counts, false, logits.data());
    state_->rollback(lengths);
    for (std::size_t b = 0; b < owner_.size(); ++b) keep(b, right[b], width, logits);
  }

  void keep(std::size_t b, int count, int width, const std::vector<float>& logits) {
    Answer& answer = answers_[owner_[b]];
    const auto words = static_cast<std::size_t>(tiny_.spec.words);
    const float* row = logits.data() + b * static_cast<std::size_t>(width) * words;
    for (int t = 0; t < count; ++t, row += words) {
      answer.logits.emplace_back(row, row + words);
      // Only the draft before the first of a block was made; the rest are what `alone` checks.
      answer.drafts.push_back(t == 0 ? drafts_[owner_[b]] : std::vector<float>());
    }
  }

  // Rows change places, and finished ones may go.
  void shuffle() {
    std::vector<int> rows;
    for (std::size_t b = 0; b < owner_.size(); ++b)
      if (left(owner_[b]) > 0 || dice_.chance(0.5)) rows.push_back(static_cast<int>(b));
    for (std::size_t b = rows.size(); b > 1; --b)
      std::swap(rows[b - 1],
                rows[static_cast<std::size_t>(dice_.pick(0, static_cast<int>(b) - 1))]);
    std::vector<std::size_t> owner;
    for (int row : rows) owner.push_back(owner_[static_cast<std::size_t>(row)]);
    state_->select(rows);
    owner_ = owner;
  }

  Model& model_;
  const TinyModel& tiny_;
  Dice& dice_;
  std::vector<Example> examples_;
  std::vector<Answer> answers_;
  std::vector<std::vector<float>> drafts_;
  std::vector<std::size_t> owner_;  // whose sequence a row is
  std::unique_ptr<State> state_;
};

bool agrees(const Answer& found, const Answer& expected) {
  Answer trimmed = expected;
  for (std::size_t i = 0; i < found.drafts.size() && i < trimmed.drafts.size(); ++i)
    if (found.drafts[i].empty()) trimmed.drafts[i].clear();
  return equal(found, trimmed);
}

void check_exactness(Dice& dice, Precision precision) {
  const TinyModel tiny = random_model(dice, precision);
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 9));
  const auto plain = tiny.build("portable", 1);
  std::vector<Answer> expected;
  for (const Example& example : examples) expected.push_back(alone(*plain, tiny, example));
  const auto plan = static_cast<std::uint64_t>(dice.pick(0, 1 << 30));
  const auto compare = [&](const std::string& name, int threads) {
    const auto model = tiny.build(name, threads);
    CHECK(model->instruction_set() == name && model->threads() == threads);
    CHECK(equal(alone(*model, tiny, examples[0]), expected[0]));
    Dice same_dice(plan);
    const std::vector<Answer> found = Batch(*model, tiny, examples, same_dice).run();
    for (std::size_t n = 0; n < examples.size(); ++n) CHECK(agrees(found[n], expected[n]));
  };
  const std::vector<std::string> names = available_kernels();
  for (const std::string& name : names) compare(name, 1);
  for (int threads = 2; threads <= 4; ++threads)
    compare(names[static_cast<std::size_t>(dice.pick(0, static_cast<int>(names.size()) - 1))],
            threads);
}

// Several threads call one model, each with a state of its own.
void check_callers(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Example> examples = random_examples(dice, tiny, 3);
  const auto model = tiny.build("", dice.pick(2, 3));
  std::vector<Answer> expected, found(examples.size());
  for (const Example& example : examples) expected.push_back(alone(*model, tiny, example));
  std::vector<int> wrong(examples.size(), 0);
  std::vector<std::thread> callers;
  for (std::size_t n = 0; n < examples.size(); ++n)
    callers.emplace_back([&, n] {
      for (int round = 0; round < 3; ++round) {
        const auto state = model->encode({examples[n].source}, kRoom, true, false);
        for (std::size_t t = 0; t < examples[n].tokens.size(); ++t) {
          const std::vector<int> token = {examples[n].tokens[t]};
          std::vector<float> logits(static_cast<std::size_t>(tiny.spec.words));
          wrong[n] += !same(draft(*model, *state, token)[0], expected[n].drafts[t]);
          model->extend(*state, token, 1, {1}, false, logits.data());
          wrong[n] += !same(logits, expected[n].logits[t]);
        }
      }
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

}  // namespace

void check_batches(std::uint64_t seed) {
  for (std::uint64_t round = 0; round < 12; ++round) {
    Dice dice(seed * 1000 + round);
    check_exactness(dice, round % 4 == 3 ? Precision::float32 : Precision::int8);
    check_callers(dice);
  }
}

}  // namespace outrider
