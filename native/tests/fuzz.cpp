// Calls with random shapes, ids, lengths and counts, many of them wrong. Nothing may come of a
// wrong one but std::invalid_argument; and whatever happened, a model still says what it said at
// first.
#include "check.h"
#include "checks.h"
#include "tiny_model.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace outrider {
namespace {

constexpr int kInt = std::numeric_limits<int>::max();
constexpr std::int64_t kLong = std::numeric_limits<std::int64_t>::max();

struct Calls {
  long taken = 0, refused = 0;
};

// A model, the states it has open, and what it says of one sequence.
class Target {
 public:
  Target(Dice& dice, Calls& calls) : dice_(dice), calls_(calls) {
    tiny_ = random_model(dice, dice.chance(0.8) ? Precision::int8 : Precision::float32);
    const std::vector<std::string> names = available_kernels();
    const int name = dice.pick(0, static_cast<int>(names.size()) - 1);
    const int threads = dice.chance(0.3) ? dice.pick(2, 3) : 1;
    model_ = tiny_.build(names[static_cast<std::size_t>(name)], threads);
    if (tiny_.reads()) source_ = dice.ids(5, words());
    tokens_ = dice.ids(7, words());
    expected_ = reference();
  }

  // One random call on one of the states, right or wrong.
  void step(Target& other) {
    if (states_.empty() || dice_.chance(0.15)) return open();
    const int place = dice_.pick(0, static_cast<int>(states_.size()) - 1);
    const std::unique_ptr<State>& state = states_[static_cast<std::size_t>(place)];
    Target& caller = dice_.chance(0.03) ? other : *this;  // a state of another model
    const int kind = dice_.pick(0, 10);
    if (kind < 3)
      caller.extend(*state);
    else if (kind < 4)
      caller.likeliest(*state);
    else if (kind < 6)
      caller.draft(*state);
    else if (kind < 7)
      caller.ctc(*state);
    else if (kind < 8)
      rollback(*state);
    else if (kind < 9)
      select(*state);
    else if (kind < 10)
      caller.draft_and_verify(*state);
    else
      states_.erase(states_.begin() + place);
  }

  bool unharmed() { return same(reference(), expected_); }

 private:
  int words() const { return tiny_.spec.words; }

  template <typename Call>
  void attempt(const Call& call) {
    if (refuses(call))
      ++calls_.refused;
    else
      ++calls_.taken;
  }

  // Mostly a small number; now and then one that no caller should give.
  int odd(int low, int high) {
    if (!dice_.chance(0.03)) return dice_.pick(low, high);
    return dice_.one_of({-kInt - 1, -1, 0, high + 1, 1 << 24, 1 << 30, kInt - 15, kInt});
  }

  std::vector<int> odd_ids(int count) {
    std::vector<int> ids = dice_.ids(count, words());
    if (!ids.empty() && dice_.chance(0.05))
      ids[static_cast<std::size_t>(dice_.pick(0, count - 1))] = odd(-1, words());
    return ids;
  }

  std::vector<std::int64_t> some_known(int count) {
    std::vector<std::int64_t> out(static_cast<std::size_t>(std::max(0, count)), -1);
    for (std::int64_t& token : out) {
      if (dice_.chance(0.3)) token = dice_.pick(0, words() - 1);
      if (dice_.chance(0.01))
        token = dice_.one_of<std::int64_t>({words(), kLong, -kLong - 1,
                                            -(std::int64_t{1} << 32) + words() + 40'000'000,
                                            std::int64_t{1} << 32});
    }
    return out;
  }

  void open() {
    std::vector<std::vector<int>> sources;
    for (int n = dice_.chance(0.03) ? 0 : dice_.pick(1, 9); n > 0; --n) {
      const bool wrong = dice_.chance(0.01);
      const int length = tiny_.reads() != wrong ? dice_.pick(wrong ? 0 : 1, 14) : 0;
      sources.push_back(odd_ids(length));
    }
    const bool parallel = tiny_.ctc.has_value() != dice_.chance(0.05);
    const int capacity = odd(0, 40);
    attempt(
        [&] { states_.push_back(model_->encode(sources, capacity, dice_.chance(0.8), parallel)); });
    if (states_.size() > 4) states_.erase(states_.begin());
  }

  void extend(State& state) {
    const int width = dice_.chance(0.02) ? 0 : dice_.pick(1, 7);
    const int sequences = state.size() + (dice_.chance(0.02) ? dice_.pick(-1, 1) : 0);
    const bool last = dice_.chance(0.3);
    std::vector<int> counts(static_cast<std::size_t>(std::max(0, sequences)));
    for (int& count : counts) count = odd(0, std::max(width, 1));
    std::vector<int> tokens = odd_ids(std::max(0, sequences) * width);
    std::vector<float> logits(static_cast<std::size_t>(state.size()) *
                              static_cast<std::size_t>((last ? 1 : width) * words()));
    attempt([&] { model_->extend(state, tokens, width, counts, last, logits.data()); });
  }

  void likeliest(State& state) {
    const int width = dice_.pick(1, 7);
    std::vector<int> tokens = odd_ids(state.size() * width);
    if (dice_.chance(0.02)) tokens.push_back(0);
    std::vector<std::int64_t> best(static_cast<std::size_t>(state.size() * width));
    const std::vector<int> forbidden = odd_ids(dice_.pick(0, 2 * words()));
    attempt([&] { model_->likeliest(state, tokens, width, forbidden, best.data()); });
  }

  void draft(State& state) {
    const int slots = odd(1, 9);
    const std::size_t wide = slots > 0 && slots < 100 ? static_cast<std::size_t>(slots) : 1;
    const int sequences = state.size() + (dice_.chance(0.02) ? 1 : 0);
    const std::size_t size = static_cast<std::size_t>(state.size()) * wide;
    const std::size_t count = static_cast<std::size_t>(model_->candidates());
    std::vector<std::int64_t> tokens(size), ids(size * count);
    std::vector<float> probabilities(size * count), confidence(size);
    std::vector<double> uniform(size);
    for (double& u : uniform) u = dice_.chance(0.01) ? -1e300 : dice_.uniform();
    const std::vector<std::int64_t> known = some_known(static_cast<int>(size));
    DraftSampling sampling;
    sampling.temperature = dice_.one_of({1.0f, 0.3f, 1e-40f, 1e30f});
    if (dice_.chance(0.3)) sampling.uniform = uniform.data();
    if (dice_.chance(0.3)) sampling.known = known.data();
    attempt([&] {
      model_->draft(state, odd_ids(sequences), slots, sampling,
                    {tokens.data(), ids.data(), probabilities.data(), confidence.data()});
    });
  }

  void draft_and_verify(State& state) {
    const std::vector<int> last = odd_ids(state.size() + (dice_.chance(0.02) ? 1 : 0));
    const std::vector<int> forbidden = odd_ids(dice_.pick(0, 3));
    const double min_survival = dice_.one_of({0.0, 0.3, -1.0, 1e300, std::nan("")});
    std::vector<int> held;
    for (const auto& sequence : state.sequences)
      held.push_back(odd(sequence->length_before, sequence->length));
    const int slots = odd(1, 9);
    const std::vector<int> ends = odd_ids(dice_.pick(0, 3));
    attempt([&] { model_->draft_and_verify(state, held, last, slots, min_survival, ends, forbidden); });
  }

  void ctc(State& state) {
    int slots = 0;
    for (const auto& sequence : state.sequences)
      if (sequence->source) slots = std::max(slots, sequence->source->length * model_->upsample());
    if (dice_.chance(0.05)) slots = std::max(0, slots - 1);
    const int sequences = state.size() + (dice_.chance(0.02) ? 1 : 0);
    const std::vector<std::int64_t> known = some_known(state.size() * slots);
    std::vector<float> logits(known.size() * static_cast<std::size_t>(words()));
    const std::int64_t* given = dice_.chance(0.5) ? known.data() : nullptr;
    attempt([&] { model_->ctc(state, given, sequences, slots, logits.data()); });
  }

  void rollback(State& state) {
    std::vector<int> lengths;
    for (const auto& sequence : state.sequences)
      lengths.push_back(dice_.chance(0.05) ? odd(-1, 40)
                                           : dice_.pick(sequence->length_before, sequence->length));
    if (dice_.chance(0.02)) lengths.push_back(0);
    attempt([&] { state.rollback(lengths); });
  }

  void select(State& state) {
    std::vector<int> rows;
    for (int n = dice_.pick(dice_.chance(0.03) ? 0 : 1, 8); n > 0; --n)
      rows.push_back(dice_.chance(0.01) ? odd(-1, 9)
                                        : dice_.pick(0, std::max(0, state.size() - 1)));
    attempt([&] { state.select(rows); });
  }

  // Logits, a draft's confidence and CTC's logits of one sequence.
  std::vector<float> reference() {
    const auto state = model_->encode({source_}, 16, true, tiny_.ctc.has_value());
    const int width = static_cast<int>(tokens_.size());
    std::vector<float> out(tokens_.size() * static_cast<std::size_t>(words()));
    model_->extend(*state, tokens_, width, {width}, false, out.data());
    std::vector<std::int64_t> tokens(3), ids(3 * static_cast<std::size_t>(model_->candidates()));
    std::vector<float> probabilities(ids.size()), confidence(3);
    model_->draft(*state, {tokens_[0]}, 3, DraftSampling(),
                  {tokens.data(), ids.data(), probabilities.data(), confidence.data()});
    out.insert(out.end(), confidence.begin(), confidence.end());
    if (!tiny_.ctc) return out;
    const int slots = static_cast<int>(source_.size()) * model_->upsample();
    std::vector<float> logits(static_cast<std::size_t>(slots * words()));
    model_->ctc(*state, nullptr, 1, slots, logits.data());
    out.insert(out.end(), logits.begin(), logits.end());
    return out;
  }

  Dice& dice_;
  Calls& calls_;
  TinyModel tiny_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<int> source_, tokens_;
  std::vector<float> expected_;
};

}  // namespace

void fuzz(double seconds, std::uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  Calls calls;
  std::uint64_t cases = 0;
  for (; Clock::now() < end; ++cases) {
    Dice dice(seed + cases);
    Target one(dice, calls), two(dice, calls);
    for (int step = 0; step < 60; ++step) one.step(two);
    CHECK(one.unharmed());
    CHECK(two.unharmed());
  }
  std::printf("fuzz: %llu cases, %ld calls taken, %ld refused, seeds from %llu\n",
              static_cast<unsigned long long>(cases), calls.taken, calls.refused,
              static_cast<unsigned long long>(seed));
}

}  // namespace outrider
