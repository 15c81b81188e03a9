// Calls with random shapes, ids, lengths and counts, many of them invalid. An invalid call throws
// std::invalid_argument, and the model's outputs do not change afterwards.
#include "check.h"
#include "checks.h"
#include "tiny_model.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace outrider {
namespace {

constexpr int kInt = std::numeric_limits<int>::max();

struct Calls {
  long taken = 0, refused = 0;
};

// A model, its open states, and its expected outputs for one sequence.
class Target {
 public:
  Target(Dice& dice, Calls& calls) : dice_(dice), calls_(calls) {
    tiny_ = random_model(dice, dice.chance(0.8) ? Precision::int8 : Precision::float32);
    const std::vector<std::string> names = available_kernels();
    const int name = dice.pick(0, static_cast<int>(names.size()) - 1);
    const int threads = dice.chance(0.3) ? dice.pick(2, 3) : 1;
    engine_ = tiny_.build(names[static_cast<std::size_t>(name)], threads);
    if (tiny_.has_encoder()) source_ = dice.ids(5, vocab_size());
    tokens_ = dice.ids(7, vocab_size());
    expected_ = reference();
  }

  // Makes a random valid or invalid call on one of the states.
  void step(Target& other) {
    if (states_.empty() || dice_.chance(0.15)) return open();
    const int place = dice_.pick(0, static_cast<int>(states_.size()) - 1);
    const std::unique_ptr<State>& state = states_[static_cast<std::size_t>(place)];
    Target& caller = dice_.chance(0.03) ? other : *this;  // a state of another model
    const int kind = dice_.pick(0, 11);
    if (kind < 3)
      caller.extend(*state);
    else if (kind < 4)
      dice_.chance(0.5) ? caller.greedy(*state) : caller.answer(*state);
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
    else if (kind < 11)
      join(*state, caller);
    else
      states_.erase(states_.begin() + place);
  }

  bool unharmed() { return same(reference(), expected_); }

 private:
  int vocab_size() const { return tiny_.spec.vocab_size; }

  template <typename Call>
  void attempt(const Call& call) {
    if (refuses(call))
      ++calls_.refused;
    else
      ++calls_.taken;
  }

  // Returns a number in range, or rarely an invalid one.
  int odd(int low, int high) {
    if (!dice_.chance(0.03)) return dice_.pick(low, high);
    return dice_.one_of({-kInt - 1, -1, 0, high + 1, 1 << 24, 1 << 30, kInt - 15, kInt});
  }

  std::vector<int> odd_ids(int count) {
    std::vector<int> ids = dice_.ids(count, vocab_size());
    if (!ids.empty() && dice_.chance(0.05))
      ids[static_cast<std::size_t>(dice_.pick(0, count - 1))] = odd(-1, vocab_size());
    return ids;
  }

  template <typename T>
  std::vector<T> some_known(int count) {
    std::vector<T> out(static_cast<std::size_t>(std::max(0, count)), -1);
    for (T& token : out) {
      if (dice_.chance(0.3)) token = dice_.pick(0, vocab_size() - 1);
      if (dice_.chance(0.01))
        token = dice_.one_of<T>({static_cast<T>(vocab_size()), std::numeric_limits<T>::max(),
                                 std::numeric_limits<T>::min()});
      if (sizeof(T) > sizeof(int) && dice_.chance(0.005))
        token =
            dice_.one_of<T>({static_cast<T>(-(std::int64_t{1} << 32) + vocab_size() + 40'000'000),
                             static_cast<T>(std::int64_t{1} << 32)});
    }
    return out;
  }

  void open() {
    TokenRows sources;
    for (int n = dice_.chance(0.03) ? 0 : dice_.pick(1, 9); n > 0; --n) {
      const bool wrong = dice_.chance(0.01);
      const int length = tiny_.has_encoder() != wrong ? dice_.pick(wrong ? 0 : 1, 14) : 0;
      sources.push_back(odd_ids(length));
    }
    const bool parallel = tiny_.ctc.has_value() != dice_.chance(0.05);
    std::vector<int> capacities;
    for (std::size_t n = 0; n < sources.size(); ++n) capacities.push_back(odd(0, 40));
    if (dice_.chance(0.01)) capacities.push_back(3);
    const bool drafting = dice_.chance(0.8);
    TokenRows shortlists;
    if (tiny_.has_encoder() != dice_.chance(0.02) && dice_.chance(0.4))
      for (std::size_t n = dice_.chance(0.02) ? 1 : 0; n < sources.size(); ++n) {
        shortlists.push_back(odd_ids(dice_.pick(dice_.chance(0.01) ? 0 : 1, 30)));
        std::sort(shortlists.back().begin(), shortlists.back().end());
        if (dice_.chance(0.02)) continue;
        shortlists.back().erase(std::unique(shortlists.back().begin(), shortlists.back().end()),
                                shortlists.back().end());
      }
    attempt([&] {
      states_.push_back(engine_->encode(sources, capacities, drafting, parallel, shortlists));
    });
    if (states_.size() > 4) states_.erase(states_.begin());
  }

  // Returns tokens for each sequence, for some none; rarely for a wrong number of sequences.
  TokenRows some_tokens(const State& state, int most) {
    TokenRows tokens;
    for (int n = state.size() + (dice_.chance(0.02) ? dice_.pick(-1, 1) : 0); n > 0; --n)
      tokens.push_back(odd_ids(dice_.pick(0, dice_.chance(0.01) ? 50 : most)));
    return tokens;
  }

  std::vector<int> some_counts(const State& state) {
    std::vector<int> counts;
    for (int n = state.size() + (dice_.chance(0.02) ? dice_.pick(-1, 1) : 0); n > 0; --n)
      counts.push_back(odd(0, 9));
    return counts;
  }

  Forbidden some_forbidden(const State& state) {
    Forbidden forbidden{odd_ids(dice_.pick(0, 2 * vocab_size())), odd_ids(dice_.pick(0, 3)), {}};
    if (dice_.chance(0.5)) forbidden.early = some_counts(state);
    return forbidden;
  }

  void extend(State& state) {
    const bool last = dice_.chance(0.3);
    const TokenRows tokens = some_tokens(state, 7);
    int width = last ? 1 : dice_.pick(0, 3);
    if (!last && dice_.chance(0.95))
      for (const std::vector<int>& row : tokens)
        width = std::max(width, static_cast<int>(row.size()));
    std::vector<float> logits(area(state.size(), width) * static_cast<std::size_t>(vocab_size()));
    attempt([&] { outrider::extend(*engine_, state, tokens, width, last, logits.data()); });
  }

  void greedy(State& state) {
    const TokenRows tokens = some_tokens(state, 7);
    const Forbidden forbidden = some_forbidden(state);
    attempt([&] { outrider::argmax(*engine_, state, tokens, forbidden); });
    const std::vector<int> newest = dice_.ids(dice_.pick(0, 4), vocab_size());
    const int steps = dice_.pick(-1, 5);
    attempt([&] { outrider::greedy(*engine_, state, newest, steps, forbidden.ends, forbidden); });
  }

  Query some_query(const std::vector<int>& sequences) {
    Query query;
    query.kind = dice_.one_of(
        {Query::Kind::argmax, Query::Kind::top_k, Query::Kind::sample, Query::Kind::log_probs});
    query.sequences = sequences;
    const bool one = query.kind == Query::Kind::top_k || query.kind == Query::Kind::sample;
    query.places = one && dice_.chance(0.97) ? 1 : odd(0, 4);
    query.log_probs = dice_.chance(0.5);
    query.count = odd(1, vocab_size() + 3);
    query.temperature = dice_.one_of({1.0, 0.2, 1e-60, 1e300});
    if (dice_.chance(0.01)) query.temperature = dice_.one_of({0.0, -1.0, std::nan("")});
    query.top_k = odd(0, vocab_size() + 3);
    query.top_p = dice_.one_of({1.0, 0.9, 0.1, 0.0, 2.0});
    if (dice_.chance(0.01)) query.top_p = dice_.one_of({-1.0, std::nan("")});
    query.ends = odd_ids(dice_.pick(0, 3));
    query.forbidden.always = odd_ids(dice_.pick(0, 2 * vocab_size()));
    query.forbidden.ends = odd_ids(dice_.pick(0, 3));
    const bool early = dice_.chance(0.5);
    for (int n = static_cast<int>(sequences.size()) + (dice_.chance(0.01) ? 1 : 0); n > 0; --n) {
      query.uniform.push_back(dice_.chance(0.01) ? -1e300 : dice_.uniform());
      query.given.push_back(odd_ids(dice_.chance(0.97) ? 4 : dice_.pick(0, 4)));
      if (early) query.forbidden.early.push_back(odd(0, 3));
    }
    return query;
  }

  void answer(State& state) {
    std::vector<Query> queries;
    std::vector<int> some;
    for (int b = 0; b < state.size(); ++b) {
      if (dice_.chance(0.8)) some.push_back(dice_.chance(0.01) ? odd(-1, 9) : b);
      if (!dice_.chance(0.3)) continue;
      queries.push_back(some_query(some));
      some.clear();
    }
    queries.push_back(some_query(some));
    const bool last = dice_.chance(0.3);
    const TokenRows tokens = some_tokens(state, 4);
    attempt([&] {
      for (const Answer& one : outrider::answer(*engine_, state, tokens, queries, last))
        for (const std::vector<int>& row : one.tokens)
          for (const int token : row) CHECK(token >= 0 && token < vocab_size());
    });
  }

  void draft(State& state) {
    const std::vector<int> counts = some_counts(state);
    DraftSampling sampling;
    int slots = dice_.chance(0.02) ? 0 : 9;
    for (const int count : counts) {
      const std::size_t real = count > 0 && count < 100 ? static_cast<std::size_t>(count) : 1;
      sampling.uniform.emplace_back(dice_.chance(0.3) ? 0 : real);
      for (double& u : sampling.uniform.back()) u = dice_.chance(0.01) ? -1e300 : dice_.uniform();
      sampling.known.push_back(some_known<int>(dice_.chance(0.3) ? 0 : static_cast<int>(real)));
      slots = std::max(slots, count < 100 ? count : 0);
    }
    sampling.temperature = dice_.one_of({1.0f, 0.3f, 1e-40f, 1e30f});
    if (dice_.chance(0.002)) sampling.temperature = std::nanf("");
    if (dice_.chance(0.6)) sampling.uniform.clear();
    if (dice_.chance(0.6)) sampling.known.clear();
    if (dice_.chance(0.02)) sampling.known.resize(3);
    const std::size_t size = area(state.size() * slots, engine_->model().candidates());
    std::vector<std::int64_t> ids(size);
    std::vector<float> probabilities(size);
    const std::vector<int> last = odd_ids(state.size() + (dice_.chance(0.02) ? 1 : 0));
    DraftCandidates out{ids.data(), probabilities.data(), slots};
    if (dice_.chance(0.3)) out = {};
    attempt([&] { outrider::draft(*engine_, state, last, counts, sampling, out); });
  }

  void draft_and_verify(State& state) {
    const std::vector<int> last = odd_ids(state.size() + (dice_.chance(0.02) ? 1 : 0));
    const Forbidden forbidden = some_forbidden(state);
    const double min_survival = dice_.one_of({0.0, 0.3, -1.0, 1e300, std::nan("")});
    std::vector<int> lengths;
    for (const auto& sequence : state.sequences)
      lengths.push_back(odd(sequence->length_before, sequence->length));
    const std::vector<int> counts = some_counts(state);
    const std::vector<int> stop_tokens = odd_ids(dice_.pick(0, 3));
    attempt([&] {
      outrider::draft_and_verify(*engine_, state, lengths, last, counts, min_survival, stop_tokens,
                                 forbidden, dice_.chance(0.3));
    });
  }

  // Joins rows of a state of `owner`, usually this object, to `state`.
  void join(State& state, Target& owner) {
    if (owner.states_.empty()) return;
    const int which = dice_.pick(0, static_cast<int>(owner.states_.size()) - 1);
    State& other = *owner.states_[static_cast<std::size_t>(which)];
    if (&other == &state || state.size() > 20) return;
    std::vector<int> at;
    int behind = state.size();
    for (int n = 0; n < other.size(); ++n)
      at.push_back(n < state.size() && dice_.chance(0.3) ? n : behind++);
    for (int& place : at)
      if (dice_.chance(0.02)) place = odd(-1, 9);
    if (dice_.chance(0.02)) at.push_back(0);
    const int before = state.size() + other.size();
    attempt([&] { state.join(other, at); });
    CHECK(state.size() <= before && state.size() + other.size() <= before);
  }

  void ctc(State& state) {
    int slots = 0;
    for (const auto& sequence : state.sequences)
      if (sequence->source)
        slots = std::max(slots, sequence->source->length * engine_->model().upsample());
    if (dice_.chance(0.05)) slots = std::max(0, slots - 1);
    const int sequences = state.size() + (dice_.chance(0.02) ? 1 : 0);
    const std::vector<std::int64_t> known = some_known<std::int64_t>(state.size() * slots);
    std::vector<float> logits(known.size() * static_cast<std::size_t>(vocab_size()));
    const std::int64_t* given = dice_.chance(0.5) ? known.data() : nullptr;
    attempt([&] { outrider::ctc(*engine_, state, given, sequences, slots, logits.data()); });
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

  // Returns the logits, the confidence of a draft and the CTC logits of one sequence.
  std::vector<float> reference() {
    const auto state = engine_->encode({source_}, {16}, true, tiny_.ctc.has_value());
    const int width = static_cast<int>(tokens_.size());
    std::vector<float> out(tokens_.size() * static_cast<std::size_t>(vocab_size()));
    outrider::extend(*engine_, *state, {tokens_}, width, false, out.data());
    const Draft drafted = outrider::draft(*engine_, *state, {tokens_[0]}, {3}, {}, {});
    out.insert(out.end(), drafted.confidence[0].begin(), drafted.confidence[0].end());
    if (!tiny_.ctc) return out;
    const int slots = static_cast<int>(source_.size()) * engine_->model().upsample();
    std::vector<float> logits(static_cast<std::size_t>(slots * vocab_size()));
    outrider::ctc(*engine_, *state, nullptr, 1, slots, logits.data());
    out.insert(out.end(), logits.begin(), logits.end());
    return out;
  }

  Dice& dice_;
  Calls& calls_;
  TinyModel tiny_;
  std::unique_ptr<Engine> engine_;
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
