// Batches. The results of a sequence are bit-identical on every instruction set, with any number of
// threads and other sequences, in blocks or token by token, and after a rollback.
#include "check.h"
#include "checks.h"
#include "examples.h"

#include <algorithm>
#include <numeric>
#include <thread>

namespace outrider {
namespace {

// A running batch: blocks of any size; sequences join late and leave early.
class Batch {
 public:
  Batch(Engine& engine, const TinyModel& tiny, std::vector<Example> examples, Dice& dice)
      : engine_(engine), tiny_(tiny), dice_(dice), examples_(std::move(examples)) {
    transcripts_.resize(examples_.size());
    drafts_.resize(examples_.size());
    state_ = open();
  }

  std::vector<Transcript> run() {
    while (waiting_ < examples_.size() ||
           std::any_of(owner_.begin(), owner_.end(), [&](std::size_t n) { return left(n) > 0; })) {
      if (waiting_ < examples_.size() && dice_.chance(0.5)) join();
      draft_all();
      extend_some();
      if (dice_.chance(0.3)) shuffle();
    }
    return transcripts_;
  }

 private:
  int done(std::size_t n) const { return static_cast<int>(transcripts_[n].logits.size()); }
  int left(std::size_t n) const { return static_cast<int>(examples_[n].tokens.size()) - done(n); }

  // Opens some of the waiting sequences and appends them as rows.
  std::unique_ptr<State> open() {
    const auto most = static_cast<int>(examples_.size() - waiting_);
    const auto end = waiting_ + static_cast<std::size_t>(dice_.pick(1, most));
    const std::vector<Example> some(examples_.begin() + static_cast<std::ptrdiff_t>(waiting_),
                                    examples_.begin() + static_cast<std::ptrdiff_t>(end));
    std::vector<int> capacities;
    for (std::size_t n = 0; n < some.size(); ++n) capacities.push_back(kRoom + dice_.pick(0, 5));
    auto state = engine_.encode(sources_of(some), capacities, true, tiny_.ctc.has_value());
    const auto found = slots(engine_, *state, tiny_);
    for (std::size_t b = 0; waiting_ < end; ++b, ++waiting_) {
      transcripts_[waiting_].slots = found[b];
      owner_.push_back(waiting_);
    }
    return state;
  }

  // Puts new rows in place of finished ones or after the last row.
  void join() {
    const std::size_t before = owner_.size();
    const auto other = open();
    std::vector<int> at;
    std::vector<std::size_t> owner(owner_.begin(),
                                   owner_.begin() + static_cast<std::ptrdiff_t>(before));
    std::vector<bool> taken(before, false);
    for (std::size_t n = before; n < owner_.size(); ++n) {
      std::size_t place = owner.size();
      for (std::size_t b = 0; b < before; ++b)
        if (!taken[b] && left(owner_[b]) == 0 && dice_.chance(0.5)) place = b;
      if (place == owner.size())
        owner.push_back(owner_[n]);
      else
        taken[place] = true;
      owner[place] = owner_[n];
      at.push_back(static_cast<int>(place));
    }
    owner_ = owner;
    state_->join(*other, at);
    CHECK(other->size() == 0 && state_->size() == static_cast<int>(owner_.size()));
  }

  void draft_all() {
    std::vector<int> last, counts;
    for (std::size_t n : owner_) {
      last.push_back(left(n) > 0 ? examples_[n].tokens[static_cast<std::size_t>(done(n))] : 0);
      counts.push_back(dice_.pick(0, kSlots));
    }
    const auto found = draft(engine_, *state_, last, counts);
    for (std::size_t b = 0; b < owner_.size(); ++b) drafts_[owner_[b]] = found[b];
  }

  // Appends some tokens of each sequence and some wrong ones, which are rolled back.
  void extend_some() {
    TokenRows tokens;
    std::vector<int> right, lengths;
    for (std::size_t n : owner_) {
      right.push_back(dice_.pick(0, std::min(6, left(n))));
      const int count = std::min(kRoom - done(n), dice_.pick(right.back(), 7));
      lengths.push_back(done(n) + right.back());
      tokens.push_back(dice_.ids(count, tiny_.spec.vocab_size));
      std::copy_n(examples_[n].tokens.begin() + done(n), right.back(), tokens.back().begin());
    }
    const auto logits = extend(engine_, *state_, tokens);
    state_->rollback(lengths);
    for (std::size_t b = 0; b < owner_.size(); ++b) keep(owner_[b], right[b], logits[b]);
  }

  void keep(std::size_t n, int count, const std::vector<float>& logits) {
    const float* row = logits.data();
    for (int t = 0; t < count; ++t, row += tiny_.spec.vocab_size) {
      transcripts_[n].logits.emplace_back(row, row + tiny_.spec.vocab_size);
      // Only the first token of a block has a draft; `alone` checks the others.
      transcripts_[n].drafts.push_back(t == 0 ? drafts_[n] : std::vector<float>());
    }
  }

  // Reorders rows and may drop finished ones.
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

  Engine& engine_;
  const TinyModel& tiny_;
  Dice& dice_;
  std::vector<Example> examples_;
  std::vector<Transcript> transcripts_;
  std::vector<std::vector<float>> drafts_;
  std::size_t waiting_ = 0;         // the first example that has not joined
  std::vector<std::size_t> owner_;  // sequence of each row
  std::unique_ptr<State> state_;
};

// Whether the drafts, which may be shorter, are the expected ones.
bool agrees(const Transcript& found, const Transcript& expected) {
  Transcript trimmed = expected;
  for (std::size_t i = 0; i < found.drafts.size() && i < trimmed.drafts.size(); ++i)
    trimmed.drafts[i].resize(std::min(found.drafts[i].size(), trimmed.drafts[i].size()));
  return equal(found, trimmed);
}

void check_exactness(Dice& dice, Precision precision) {
  const TinyModel tiny = random_model(dice, precision);
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 9));
  const auto plain = tiny.build("portable", 1);
  std::vector<Transcript> expected;
  for (const Example& example : examples) expected.push_back(alone(*plain, tiny, example));
  const auto plan = static_cast<std::uint64_t>(dice.pick(0, 1 << 30));
  const auto compare = [&](const std::string& name, int threads) {
    const auto engine = tiny.build(name, threads);
    CHECK(engine->model().kernel.name == name && engine->threads() == threads);
    CHECK(equal(alone(*engine, tiny, examples[0]), expected[0]));
    Dice same_dice(plan);
    const std::vector<Transcript> found = Batch(*engine, tiny, examples, same_dice).run();
    for (std::size_t n = 0; n < examples.size(); ++n) CHECK(agrees(found[n], expected[n]));
  };
  const std::vector<std::string> names = available_kernels();
  for (const std::string& name : names) compare(name, 1);
  for (int threads = 2; threads <= 4; ++threads)
    compare(names[static_cast<std::size_t>(dice.pick(0, static_cast<int>(names.size()) - 1))],
            threads);
}

// Several threads call one engine, each with a separate state.
void check_callers(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Example> examples = random_examples(dice, tiny, 3);
  const auto engine = tiny.build("", dice.pick(2, 3));
  std::vector<Transcript> expected;
  for (const Example& example : examples) expected.push_back(alone(*engine, tiny, example));
  std::vector<int> wrong(examples.size(), 0);
  std::vector<std::thread> callers;
  for (std::size_t n = 0; n < examples.size(); ++n)
    callers.emplace_back([&, n] {
      for (int round = 0; round < 3; ++round) {
        const auto state = engine->encode({examples[n].source}, {kRoom}, true, false);
        for (std::size_t t = 0; t < examples[n].tokens.size(); ++t) {
          const std::vector<int> token = {examples[n].tokens[t]};
          std::vector<float> logits(static_cast<std::size_t>(tiny.spec.vocab_size));
          const Draft found = draft(*engine, *state, token, {kSlots}, {}, {});
          wrong[n] += static_cast<float>(found.tokens[0][0]) != expected[n].drafts[t][0];
          wrong[n] += found.confidence[0].back() != expected[n].drafts[t].back();
          extend(*engine, *state, {token}, 1, false, logits.data());
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
