// Whole models. A text's numbers are the same to the bit on every instruction set, with any number
// of threads, beside any other texts, in blocks or one by one, and after tokens were taken back.
#include "check.h"
#include "checks.h"
#include "tiny_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

namespace outrider {
namespace {

constexpr int kTokens = 20;                  // tokens of a text
constexpr int kSlots = 3;                    // tokens of a draft
constexpr int kRoom = kTokens + 1 + kSlots;  // of a state

struct Story {
  std::vector<int> source, tokens;
};

// What a model says of one text: logits after every token, a draft before every one, CTC's logits.
struct Answer {
  std::vector<std::vector<float>> logits, drafts;
  std::vector<float> slots;
};

bool equal(const Answer& left, const Answer& right) {
  if (left.logits.size() != right.logits.size() || left.drafts.size() != right.drafts.size())
    return false;
  for (std::size_t i = 0; i < left.logits.size(); ++i)
    if (!same(left.logits[i], right.logits[i]) || !same(left.drafts[i], right.drafts[i]))
      return false;
  return same(left.slots, right.slots);
}

std::vector<std::vector<int>> sources_of(const std::vector<Story>& stories) {
  std::vector<std::vector<int>> sources;
  for (const Story& story : stories) sources.push_back(story.source);
  return sources;
}

std::vector<Story> random_stories(Dice& dice, const TinyModel& tiny, int count) {
  std::vector<Story> stories;
  for (int n = 0; n < count; ++n) {
    Story story;
    if (tiny.reads()) story.source = dice.ids(dice.pick(1, 12), tiny.spec.words);
    story.tokens = dice.ids(dice.pick(1, kTokens), tiny.spec.words);
    stories.push_back(story);
  }
  return stories;
}

// Slot by slot the token, its candidates, their probabilities and the confidence; a row for each
// text.
std::vector<std::vector<float>> draft(Model& model, State& state, const std::vector<int>& last,
                                      int slots = kSlots, const double* uniform = nullptr) {
  const std::size_t texts = last.size(), count = static_cast<std::size_t>(model.candidates());
  const auto wide = static_cast<std::size_t>(slots);
  std::vector<std::int64_t> tokens(texts * wide), ids(tokens.size() * count);
  std::vector<float> probabilities(ids.size()), confidence(tokens.size());
  Choice choice;
  choice.uniform = uniform;
  model.draft(state, last, slots, choice,
              {tokens.data(), ids.data(), probabilities.data(), confidence.data()});
  std::vector<std::vector<float>> out(texts);
  for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
    std::vector<float>& row = out[slot / wide];
    row.push_back(static_cast<float>(tokens[slot]));
    for (std::size_t c = slot * count; c < (slot + 1) * count; ++c) {
      row.push_back(static_cast<float>(ids[c]));
      row.push_back(probabilities[c]);
    }
    row.push_back(confidence[slot]);
  }
  return out;
}

std::vector<std::vector<float>> slots(Model& model, State& state, const TinyModel& tiny) {
  const auto texts = static_cast<std::size_t>(state.size());
  std::vector<std::vector<float>> out(texts);
  if (!tiny.ctc) return out;
  int width = 0;
  for (const auto& text : state.texts)
    width = std::max(width, text->source->length * model.upsample());
  const auto wide = static_cast<std::size_t>(width),
             words = static_cast<std::size_t>(tiny.spec.words);
  std::vector<std::int64_t> told(texts * wide, -1);
  for (std::size_t b = 0; b < texts; ++b) told[b * wide] = 1;
  std::vector<float> logits(texts * wide * words, -7.0f);
  model.ctc(state, told.data(), state.size(), width, logits.data());
  for (std::size_t b = 0; b < texts; ++b) {
    const auto real = static_cast<std::size_t>(state.texts[b]->source->length * model.upsample());
    const float* row = logits.data() + b * wide * words;
    out[b].assign(row, row + real * words);
    CHECK(std::all_of(row + real * words, row + wide * words, [](float x) { return x == -7.0f; }));
  }
  return out;
}

// One text, token by token.
Answer alone(Model& model, const TinyModel& tiny, const Story& story) {
  const auto state = model.encode({story.source}, kRoom, true, tiny.ctc.has_value());
  Answer answer;
  answer.slots = slots(model, *state, tiny)[0];
  for (int token : story.tokens) {
    answer.drafts.push_back(draft(model, *state, {token})[0]);
    std::vector<float> logits(static_cast<std::size_t>(tiny.spec.words));
    model.extend(*state, {token}, 1, {1}, false, logits.data());
    answer.logits.push_back(logits);
  }
  return answer;
}

// A batch of texts on their way, in blocks of any size.
class Batch {
 public:
  Batch(Model& model, const TinyModel& tiny, std::vector<Story> stories, Dice& dice)
      : model_(model), tiny_(tiny), dice_(dice), stories_(std::move(stories)) {
    state_ = model.encode(sources_of(stories_), kRoom, true, tiny.ctc.has_value());
    answers_.resize(stories_.size());
    owner_.resize(stories_.size());
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
  int left(std::size_t n) const { return static_cast<int>(stories_[n].tokens.size()) - done(n); }

  void draft_all() {
    std::vector<int> last;
    for (std::size_t n : owner_)
      last.push_back(left(n) > 0 ? stories_[n].tokens[static_cast<std::size_t>(done(n))] : 0);
    const auto found = draft(model_, *state_, last);
    for (std::size_t b = 0; b < owner_.size(); ++b) {
      drafts_.resize(answers_.size());
      drafts_[owner_[b]] = found[b];
    }
  }

  // Gives each text some of its tokens and some wrong ones after them, which are taken back.
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
                             ? stories_[n].tokens[static_cast<std::size_t>(done(n) + t)]
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
  std::vector<Story> stories_;
  std::vector<Answer> answers_;
  std::vector<std::vector<float>> drafts_;
  std::vector<std::size_t> owner_;  // whose text a row is
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
  const std::vector<Story> stories = random_stories(dice, tiny, dice.pick(1, 9));
  const auto plain = tiny.build("portable", 1);
  std::vector<Answer> expected;
  for (const Story& story : stories) expected.push_back(alone(*plain, tiny, story));
  const auto plan = static_cast<std::uint64_t>(dice.pick(0, 1 << 30));
  const auto compare = [&](const std::string& name, int threads) {
    const auto model = tiny.build(name, threads);
    CHECK(model->instruction_set() == name && model->threads() == threads);
    CHECK(equal(alone(*model, tiny, stories[0]), expected[0]));
    Dice same_dice(plan);
    const std::vector<Answer> found = Batch(*model, tiny, stories, same_dice).run();
    for (std::size_t n = 0; n < stories.size(); ++n) CHECK(agrees(found[n], expected[n]));
  };
  const std::vector<std::string> names = available_kernels();
  for (const std::string& name : names) compare(name, 1);
  for (int threads = 2; threads <= 4; ++threads)
    compare(names[static_cast<std::size_t>(dice.pick(0, static_cast<int>(names.size()) - 1))],
            threads);
}

// Copies of a row go their own ways, and share what they read of the source.
void check_copies(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const auto model = tiny.build("", dice.pick(1, 3));
  const std::vector<Story> one = random_stories(dice, tiny, 1);
  const Story& story = one[0];
  const int words = tiny.spec.words, beams = 3;
  const auto state = model->encode({story.source}, kRoom, true, false);
  const int length = static_cast<int>(story.tokens.size());
  std::vector<float> logits(static_cast<std::size_t>(words));
  model->extend(*state, story.tokens, length, {length}, true, logits.data());
  state->select({0, 0, 0});
  const std::vector<int> next = dice.ids(beams, words);
  std::vector<float> found(static_cast<std::size_t>(beams * words));
  model->extend(*state, next, 1, {1, 1, 1}, false, found.data());
  for (int beam = 0; beam < beams; ++beam) {
    Story longer = story;
    longer.tokens.push_back(next[static_cast<std::size_t>(beam)]);
    const std::vector<float> expected = alone(*model, tiny, longer).logits.back();
    const float* row = found.data() + beam * words;
    CHECK(same(std::vector<float>(row, row + words), expected));
    CHECK(same(alone(*model, tiny, story).logits.back(), logits));
  }
  std::vector<double> uniform(kSlots * 3);
  for (double& u : uniform) u = dice.uniform();
  const auto drawn = draft(*model, *state, next, kSlots, uniform.data());
  state->select({2});
  CHECK(same(draft(*model, *state, {next[2]}, kSlots, uniform.data() + 2 * kSlots)[0], drawn[2]));
  const std::vector<float> longer = draft(*model, *state, {next[2]})[0];
  const std::vector<float> shorter = draft(*model, *state, {next[2]}, 1)[0];
  CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));  // a slot sees none behind it
  state->select({});
  CHECK(state->size() == 0 && draft(*model, *state, {}).empty());
}

// The likeliest tokens are those whose logits are the largest, the first of equals.
void check_likeliest(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Story> stories = random_stories(dice, tiny, dice.pick(1, 9));
  const int words = tiny.spec.words, texts = static_cast<int>(stories.size());
  const int width = dice.pick(1, 8);
  const std::vector<int> tokens = dice.ids(texts * width, words);
  const std::vector<int> forbidden = dice.ids(dice.pick(0, 3), words);
  for (int threads = 1; threads <= 4; ++threads) {
    const auto model = tiny.build("", threads);
    const bool drafting = dice.chance(0.3);
    const auto state = model->encode(sources_of(stories), kRoom, drafting, false);
    const std::vector<int> counts(stories.size(), width);
    std::vector<float> logits(tokens.size() * static_cast<std::size_t>(words));
    model->extend(*state, tokens, width, counts, false, logits.data());
    state->rollback(std::vector<int>(stories.size(), 0));
    std::vector<std::int64_t> best(tokens.size(), -1), expected;
    model->likeliest(*state, tokens, width, forbidden, best.data());
    for (auto row = logits.begin(); row != logits.end(); row += words) {
      for (int token : forbidden) row[token] = -std::numeric_limits<float>::infinity();
      expected.push_back(std::max_element(row, row + words) - row);
    }
    CHECK(same(best, expected));
    CHECK(state->texts[0]->length == width);
    CHECK(refuses([&] { model->likeliest(*state, tokens, width, {words}, best.data()); }));
  }
}

// A ride is a draft, and then the likeliest tokens after as much of it as is worth checking.
void check_ride(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Story> stories = random_stories(dice, tiny, dice.pick(1, 5));
  const int words = tiny.spec.words, texts = static_cast<int>(stories.size());
  const std::vector<int> last = dice.ids(texts, words), forbidden = dice.ids(2, words);
  const auto model = tiny.build("", dice.pick(1, 3));
  const auto state = model->encode(sources_of(stories), kRoom, true, false);
  const auto other = model->encode(sources_of(stories), kRoom, true, false);
  const std::vector<std::vector<float>> drafted = draft(*model, *other, last);
  const std::size_t numbers = 2 + 2 * static_cast<std::size_t>(model->candidates());
  std::vector<int> ends;
  if (dice.chance(0.5)) ends = {words - 1, static_cast<int>(drafted[0][numbers])};
  const double worth = dice.one_of({0.0, 0.1, 0.4, 2.0});
  const std::vector<int> none(stories.size(), 0);
  std::vector<std::int64_t> forgotten(stories.size());
  model->likeliest(*state, last, 1, {}, forgotten.data());  // and to be taken back
  const Ridden ridden = model->ride(*state, none, last, kSlots, worth, ends, forbidden);
  const int kept = static_cast<int>(ridden.drafted[0].size()), width = kept + 1;
  CHECK(kept >= 1 && kept <= kSlots && ridden.drafting_seconds >= 0.0);
  CHECK(worth < 1.0 || kept == 1);
  CHECK(worth > 0.0 || !ends.empty() || kept == kSlots);
  CHECK(texts > 1 || ends.empty() || kept <= 2);  // the second guess was made an end
  std::vector<int> tokens;
  for (std::size_t b = 0; b < stories.size(); ++b) {
    tokens.push_back(last[b]);
    for (int i = 0; i < kept; ++i) {
      const float token = drafted[b][static_cast<std::size_t>(i) * numbers];
      CHECK(ridden.drafted[b][static_cast<std::size_t>(i)] == static_cast<std::int64_t>(token));
      tokens.push_back(static_cast<int>(token));
    }
  }
  std::vector<std::int64_t> best(tokens.size());
  model->likeliest(*other, tokens, width, forbidden, best.data());
  for (std::size_t b = 0; b < stories.size(); ++b)
    for (int i = 0; i < width; ++i)
      CHECK(ridden.best[b][static_cast<std::size_t>(i)] ==
            best[area(static_cast<int>(b), width) + static_cast<std::size_t>(i)]);
  CHECK(state->texts[0]->length == width);
  CHECK(refuses([&] { model->ride(*state, none, last, 0, worth, ends, forbidden); }));
  CHECK(refuses([&] { model->ride(*state, none, last, kSlots, worth, ends, {words}); }));
  CHECK(refuses([&] { model->ride(*state, none, {}, kSlots, worth, ends, forbidden); }));
}

// A prompt that is too long to be on its way at once, beside short ones, gives what blocks give.
void check_long_prompts(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  if (tiny.spec.position == Position::learned) return;  // which has no room for it
  const int width = dice.pick(1030, 2100), words = tiny.spec.words, block = 97;
  const std::vector<int> counts = {dice.pick(0, 40), width, dice.pick(0, 3)};
  const std::vector<int> tokens = dice.ids(3 * width, words), last = dice.ids(3, words);
  const std::vector<Story> stories = random_stories(dice, tiny, 3);
  const auto model = tiny.build("", dice.pick(1, 3));
  const auto whole = model->encode(sources_of(stories), width + kSlots, true, false);
  const auto pieces = model->encode(sources_of(stories), width + kSlots, true, false);
  std::vector<float> logits(static_cast<std::size_t>(3 * words), 0.0f);
  model->extend(*whole, tokens, width, counts, true, logits.data());
  for (int begin = 0; begin < width; begin += block) {
    std::vector<int> some, real;
    for (int b = 0; b < 3; ++b) {
      real.push_back(std::clamp(counts[static_cast<std::size_t>(b)] - begin, 0, block));
      for (int t = 0; t < block; ++t)
        some.push_back(t < real.back() ? tokens[area(b, width) + area(1, begin + t)] : 0);
    }
    std::vector<float> found(static_cast<std::size_t>(3 * words), 0.0f);
    model->extend(*pieces, some, block, real, true, found.data());
    for (int b = 0; b < 3; ++b) {
      const int count = counts[static_cast<std::size_t>(b)];
      if (count <= begin || count > begin + block) continue;
      const auto at = b * words;
      CHECK(std::equal(found.begin() + at, found.begin() + at + words, logits.begin() + at));
    }
  }
  const auto drafted = draft(*model, *whole, last), expected = draft(*model, *pieces, last);
  for (std::size_t b = 0; b < 3; ++b) CHECK(same(drafted[b], expected[b]));
}

// Several threads call one model, each with a state of its own.
void check_callers(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Story> stories = random_stories(dice, tiny, 3);
  const auto model = tiny.build("", dice.pick(2, 3));
  std::vector<Answer> expected, found(stories.size());
  for (const Story& story : stories) expected.push_back(alone(*model, tiny, story));
  std::vector<int> wrong(stories.size(), 0);
  std::vector<std::thread> callers;
  for (std::size_t n = 0; n < stories.size(); ++n)
    callers.emplace_back([&, n] {
      for (int round = 0; round < 3; ++round) {
        const auto state = model->encode({stories[n].source}, kRoom, true, false);
        for (std::size_t t = 0; t < stories[n].tokens.size(); ++t) {
          const std::vector<int> token = {stories[n].tokens[t]};
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

void check_refusals(Dice& dice) {
  TinyModel tiny = random_model(dice, Precision::int8);
  const auto model = tiny.build("", 2), other = tiny.build("", 1);
  const std::vector<Story> stories = random_stories(dice, tiny, 2);
  const auto state = model->encode(sources_of(stories), 8, true, false);
  std::vector<float> logits(static_cast<std::size_t>(2 * 9 * tiny.spec.words));
  const auto extend = [&](std::vector<int> tokens, int width, std::vector<int> counts) {
    model->extend(*state, tokens, width, counts, false, logits.data());
  };
  {
    const State::Use use(*state);  // as if another thread were calling
    CHECK(refuses([&] { extend({0, 0}, 1, {1, 1}); }));
    CHECK(refuses([&] { draft(*model, *state, {0, 0}); }));
  }
  CHECK(refuses([&] { other->extend(*state, {0, 0}, 1, {1, 1}, false, logits.data()); }));
  CHECK(refuses([&] { draft(*other, *state, {0, 0}); }));
  std::vector<std::int64_t> best(2);
  CHECK(refuses([&] { other->likeliest(*state, {0, 0}, 1, {}, best.data()); }));
  CHECK(refuses([&] { extend({0, tiny.spec.words}, 1, {1, 1}); }));
  CHECK(refuses([&] { extend({-1, 0}, 1, {1, 1}); }));
  CHECK(refuses([&] { extend({0, 0}, 1, {2, 1}); }));
  CHECK(refuses([&] { extend(std::vector<int>(18, 0), 9, {9, 9}); }));
  extend({0, 0}, 1, {1, 1});
  CHECK(refuses([&] { state->rollback({0}); }));
  CHECK(refuses([&] { state->rollback({2, 1}); }));
  CHECK(refuses([&] { state->select({0, 2}); }));
  CHECK(refuses([&] { model->encode({}, 8, false, false); }));
  CHECK(refuses([&] { model->encode(sources_of(stories), 1 << 30, false, false); }));
  tiny.arrays.begin()->second.second[0] = std::nanf("");
  CHECK(refuses([&] { tiny.build("", 1); }));
  tiny.arrays.erase(tiny.arrays.begin());
  CHECK(refuses([&] { tiny.build("", 3); }));
}

}  // namespace

void check_models(std::uint64_t seed) {
  for (std::uint64_t round = 0; round < 12; ++round) {
    Dice dice(seed * 1000 + round);
    check_exactness(dice, round % 4 == 3 ? Precision::float32 : Precision::int8);
    check_copies(dice);
    check_likeliest(dice);
    check_ride(dice);
    if (round % 3 == 0) check_long_prompts(dice);
    check_callers(dice);
    check_refusals(dice);
  }
}

}  // namespace outrider
