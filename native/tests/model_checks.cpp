// Single calls: copies, argmax, rounds, joins, long prompts, refusals.
#include "check.h"
#include "checks.h"
#include "examples.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

// Copies of a row continue independently and share the encoded source.
void check_copies(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const auto engine = tiny.build("", dice.pick(1, 3));
  const std::vector<Example> one = random_examples(dice, tiny, 1);
  const Example& example = one[0];
  const int vocab_size = tiny.spec.vocab_size, beams = 3;
  const auto state = engine->encode({example.source}, {kRoom}, true, false);
  std::vector<float> logits(static_cast<std::size_t>(vocab_size));
  extend(*engine, *state, {example.tokens}, 1, true, logits.data());
  CHECK(same(alone(*engine, tiny, example).logits.back(), logits));
  state->select({0, 0, 0});
  const std::vector<int> next = dice.ids(beams, vocab_size);
  const auto found = extend(*engine, *state, {{next[0]}, {next[1]}, {next[2]}});
  for (std::size_t beam = 0; beam < found.size(); ++beam) {
    Example longer = example;
    longer.tokens.push_back(next[beam]);
    CHECK(same(found[beam], alone(*engine, tiny, longer).logits.back()));
  }
  std::vector<std::vector<double>> uniform(3, std::vector<double>(kSlots));
  for (std::vector<double>& row : uniform)
    for (double& u : row) u = dice.uniform();
  const auto drawn = draft(*engine, *state, next, {kSlots, 1, kSlots}, uniform);
  state->select({2});
  CHECK(same(draft(*engine, *state, {next[2]}, {kSlots}, {uniform[2]})[0], drawn[2]));
  const std::vector<float> longer = draft(*engine, *state, {next[2]})[0];
  const std::vector<float> shorter = draft(*engine, *state, {next[2]}, {1})[0];
  CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));  // causal slots
  state->select({});
  CHECK(state->size() == 0 && draft(*engine, *state, {}).empty());
}

// A shortlist for each source, or no shortlists.
TokenRows random_shortlists(Dice& dice, const TinyModel& tiny, std::size_t sources) {
  TokenRows shortlists;
  if (!tiny.has_encoder() || dice.chance(0.4)) return shortlists;
  for (std::size_t b = 0; b < sources; ++b) {
    std::vector<int> listed = dice.ids(dice.pick(1, 40), tiny.spec.vocab_size);
    std::sort(listed.begin(), listed.end());
    listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
    shortlists.push_back(std::move(listed));
  }
  return shortlists;
}

// The argmax is the first token with the largest logit that is neither forbidden nor unlisted.
void check_argmax(Dice& dice) {
  const TinyModel tiny = random_model(
      dice, dice.one_of({Precision::int8, Precision::int8, Precision::float32}), dice.chance(0.3));
  const std::vector<Example> examples =
      random_examples(dice, tiny, dice.chance(0.5) ? 1 : dice.pick(1, 9));
  const int vocab_size = tiny.spec.vocab_size;
  TokenRows tokens;
  Forbidden forbidden;
  forbidden.always = dice.ids(dice.pick(0, 3), vocab_size);
  forbidden.ends = dice.ids(2, vocab_size);
  for (std::size_t b = 0; b < examples.size(); ++b) {
    tokens.push_back(dice.ids(dice.pick(0, dice.one_of({2, 8})), vocab_size));
    forbidden.early.push_back(dice.pick(0, 4));
  }
  if (dice.chance(0.3)) forbidden.early.clear();
  const auto listed = random_shortlists(dice, tiny, examples.size());
  for (int threads = 1; threads <= 4; ++threads) {
    const auto engine = tiny.build("", threads);
    const auto whole = engine->encode(sources_of(examples), room(examples.size()), false, false);
    const auto state = engine->encode(sources_of(examples), room(examples.size()), dice.chance(0.3),
                                      false, listed);
    auto logits = extend(*engine, *whole, tokens);
    for (std::size_t b = 0; b < listed.size(); ++b)
      for (std::size_t at = 0; at < logits[b].size(); ++at) {
        const int token = static_cast<int>(at) % vocab_size;
        if (!std::binary_search(listed[b].begin(), listed[b].end(), token))
          logits[b][at] = kUnlisted;
      }
    const auto masked = extend(*engine, *state, tokens);
    for (std::size_t b = 0; b < examples.size(); ++b) CHECK(same(masked[b], logits[b]));
    state->rollback(std::vector<int>(examples.size(), 0));
    const auto best = argmax(*engine, *state, tokens, forbidden);
    for (std::size_t b = 0; b < examples.size(); ++b) {
      std::vector<int> expected;
      for (int t = 0; t < static_cast<int>(tokens[b].size()); ++t) {
        const auto row = logits[b].begin() + static_cast<std::ptrdiff_t>(area(t, vocab_size));
        const auto forbid = [&](const std::vector<int>& some) {
          for (int token : some) row[token] = -std::numeric_limits<float>::infinity();
        };
        forbid(forbidden.always);
        if (!forbidden.early.empty() && t < forbidden.early[b]) forbid(forbidden.ends);
        expected.push_back(static_cast<int>(std::max_element(row, row + vocab_size) - row));
      }
      CHECK(same(best[b], expected));
      CHECK(state->sequences[b]->length == static_cast<int>(tokens[b].size()));
    }
    CHECK(refuses([&] { argmax(*engine, *state, tokens, {{vocab_size}, {}, {}}); }));
    CHECK(refuses([&] { argmax(*engine, *state, tokens, {{}, {vocab_size}, {}}); }));
    const TokenRows one_more(examples.size() + 1);
    const std::vector<int> early(one_more.size(), 1);
    CHECK(refuses([&] { argmax(*engine, *state, tokens, {{}, {}, early}); }));
    CHECK(refuses([&] { argmax(*engine, *state, one_more, {}); }));
  }
}

// Cross-attention weights sum to 1 and do not depend on other rows; the call appends the tokens as
// `extend` does.
void check_cross_attention(Dice& dice) {
  const TinyModel tiny = random_model(dice, dice.one_of({Precision::int8, Precision::float32}));
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 4));
  const auto engine = tiny.build("", dice.pick(1, 3));
  const auto state = engine->encode(sources_of(examples), room(examples.size()), false, false);
  TokenRows tokens;
  int keys = 0, rows = 0;
  for (const Example& example : examples) {
    tokens.push_back(dice.ids(dice.pick(0, 6), tiny.spec.vocab_size));
    keys = std::max(keys, static_cast<int>(example.source.size()));
    rows += static_cast<int>(tokens.back().size());
  }
  const int maps = tiny.spec.decoder_layers * tiny.spec.heads;
  std::vector<float> together(area(rows * maps, keys) + 1);
  if (!tiny.has_encoder()) {
    CHECK(refuses([&] { cross_attention(*engine, *state, tokens, keys, together.data()); }));
    return;
  }
  CHECK(refuses([&] { cross_attention(*engine, *state, tokens, keys - 1, together.data()); }));
  cross_attention(*engine, *state, tokens, keys, together.data());
  const float* row = together.data();
  for (std::size_t b = 0; b < examples.size(); ++b) {
    const int own = static_cast<int>(examples[b].source.size());
    const int count = static_cast<int>(tokens[b].size());
    std::vector<float> weights(area(count * maps, own) + 1);
    const auto single = engine->encode({examples[b].source}, {kRoom}, false, false);
    cross_attention(*engine, *single, {tokens[b]}, own, weights.data());
    for (int map = 0; map < count * maps; ++map, row += keys) {
      const float* mine = weights.data() + area(map, own);
      CHECK(std::equal(mine, mine + own, row));
      float total = 0.0f;
      for (int key = 0; key < keys; ++key) total += row[key];
      CHECK(std::abs(total - 1.0f) < 1e-4f);
    }
  }
  const TokenRows next(examples.size(), dice.ids(2, tiny.spec.vocab_size));
  const auto plain = engine->encode(sources_of(examples), room(examples.size()), false, false);
  extend(*engine, *plain, tokens);
  const auto expected = extend(*engine, *plain, next), found = extend(*engine, *state, next);
  for (std::size_t b = 0; b < examples.size(); ++b) CHECK(same(found[b], expected[b]));
}

// The only allowed token is found in every panel, among tokens that four bits cannot distinguish.
void check_every_panel(Dice& dice) {
  TinyModel tiny = random_model(dice, Precision::int8, true);
  while (tiny.spec.vocab_size < 2500) tiny = random_model(dice, Precision::int8, true);
  const auto engine = tiny.build("", 1);
  const std::vector<Example> one = random_examples(dice, tiny, 1);
  const auto state = engine->encode(sources_of(one), room(1), false, false);
  const std::vector<int> tokens = dice.ids(kMaxScreenedRows, tiny.spec.vocab_size);
  for (int token = dice.pick(0, kPanel - 1); token < tiny.spec.vocab_size; token += kPanel) {
    Forbidden forbidden;
    for (int other = 0; other < tiny.spec.vocab_size; ++other)
      if (other != token) forbidden.always.push_back(other);
    const auto best = argmax(*engine, *state, {tokens}, forbidden);
    CHECK(same(best[0], std::vector<int>(tokens.size(), token)));
    state->rollback({0});
  }
}

// Greedy decoding appends the argmax of every step, until a sequence produces an end token.
void check_greedy(Dice& dice) {
  const TinyModel tiny = random_model(dice, dice.one_of({Precision::int8, Precision::float32}));
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 5));
  const auto engine = tiny.build("", dice.pick(1, 2));
  const auto state = engine->encode(sources_of(examples), room(examples.size()), false, false);
  const auto other = engine->encode(sources_of(examples), room(examples.size()), false, false);
  const std::vector<int> newest = dice.ids(static_cast<int>(examples.size()), tiny.spec.vocab_size);
  const std::vector<int> ends = dice.ids(dice.pick(0, 2), tiny.spec.vocab_size);
  const Forbidden forbidden{dice.ids(dice.pick(0, 2), tiny.spec.vocab_size), {}, {}};
  const int steps = dice.pick(1, 6);
  const auto out = greedy(*engine, *state, newest, steps, ends, forbidden);
  TokenRows fed, expected(examples.size());
  for (const int token : newest) fed.push_back({token});
  bool ended = false;
  for (int step = 0; step < steps && !ended; ++step) {
    fed = argmax(*engine, *other, fed, forbidden);
    for (std::size_t b = 0; b < fed.size(); ++b) {
      expected[b].push_back(fed[b][0]);
      for (const int end : ends) ended = ended || fed[b][0] == end;
    }
  }
  for (std::size_t b = 0; b < examples.size(); ++b) CHECK(same(out[b], expected[b]));
  CHECK(refuses([&] { greedy(*engine, *state, newest, 0, ends, forbidden); }));
  CHECK(refuses([&] { greedy(*engine, *state, {}, 1, ends, forbidden); }));
}

// Answers equal those computed from the logits, bit-identical for any threads and other rows.
void check_answers(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 9));
  const int vocab_size = tiny.spec.vocab_size, count = dice.pick(1, vocab_size);
  TokenRows tokens;
  std::vector<Query> queries;
  for (int b = 0; b < static_cast<int>(examples.size()); ++b) {
    Query query;
    query.kind = dice.one_of(
        {Query::Kind::argmax, Query::Kind::top_k, Query::Kind::sample, Query::Kind::log_probs});
    query.sequences = {b};
    query.places = 1;
    query.log_probs = true;
    query.count = count;
    query.temperature = dice.one_of({0.3, 1.0, 2.0});
    query.top_k = dice.one_of({0, 3, vocab_size});
    query.top_p = dice.one_of({1.0, 0.5});
    query.uniform = {dice.uniform()};
    query.given = {dice.ids(1, vocab_size)};
    queries.push_back(query);
    tokens.push_back(dice.ids(1, vocab_size));
  }
  std::vector<Answer> expected;
  for (int threads = 1; threads <= 4; ++threads) {
    const auto engine = tiny.build("", threads);
    const auto state = engine->encode(sources_of(examples), room(examples.size()), false, false);
    const auto found = answer(*engine, *state, tokens, queries, false);
    state->rollback(std::vector<int>(examples.size(), 0));
    const auto logits = extend(*engine, *state, tokens);
    state->rollback(std::vector<int>(examples.size(), 0));
    const auto again = answer(*engine, *state, tokens, queries, dice.chance(0.5));
    for (std::size_t b = 0; b < examples.size(); ++b) {
      const std::vector<int>& chosen = found[b].tokens[0];
      const std::vector<float>& scores = found[b].log_probs[0];
      CHECK(same(chosen, again[b].tokens[0]) && same(scores, again[b].log_probs[0]));
      double total = 0.0;
      for (float logit : logits[b]) total += std::exp(static_cast<double>(logit));
      const auto is_right = [&](int token, float score) {
        const double exact = logits[b][static_cast<std::size_t>(token)] - std::log(total);
        return std::fabs(score - exact) < 1e-4 * (1.0 + std::fabs(exact));
      };
      if (queries[b].kind == Query::Kind::log_probs)
        CHECK(chosen.empty() && is_right(queries[b].given[0][0], scores[0]));
      else
        for (std::size_t i = 0; i < chosen.size(); ++i) CHECK(is_right(chosen[i], scores[i]));
      if (queries[b].kind == Query::Kind::top_k) CHECK(chosen.size() == area(1, count));
      if (threads > 1) {
        CHECK(same(chosen, expected[b].tokens[0]));
        CHECK(same(scores, expected[b].log_probs[0]));
      }
    }
    expected = found;
  }
}

// A round is a draft, and then the argmax after the drafts worth verifying.
void check_rounds(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const std::vector<Example> examples = random_examples(dice, tiny, dice.pick(1, 5));
  const std::size_t sequences = examples.size();
  const int vocab_size = tiny.spec.vocab_size;
  const std::vector<int> last = dice.ids(static_cast<int>(sequences), vocab_size);
  const Forbidden forbidden{dice.ids(2, vocab_size), {}, {}};
  const auto engine = tiny.build("", dice.pick(1, 3));
  const auto state = engine->encode(sources_of(examples), room(sequences), true, false);
  const auto other = engine->encode(sources_of(examples), room(sequences), true, false);
  std::vector<int> counts;
  for (std::size_t b = 0; b < sequences; ++b) counts.push_back(dice.pick(0, kSlots));
  const Draft drafted = draft(*engine, *other, last, counts, {}, {});
  std::vector<int> stop_tokens;
  if (dice.chance(0.7)) stop_tokens = {vocab_size - 1, counts[0] > 1 ? drafted.tokens[0][1] : 0};
  const double min_survival = dice.one_of({0.0, 0.1, 0.4, 2.0});
  const bool log_probs = dice.chance(0.5);
  const std::vector<int> none(sequences, 0);
  TokenRows fed;
  for (int token : last) fed.push_back({token});
  argmax(*engine, *state, fed, {});  // rolled back by the round
  const RoundOutput round = draft_and_verify(*engine, *state, none, last, counts, min_survival,
                                             stop_tokens, forbidden, log_probs);
  CHECK(round.drafting_seconds >= 0.0);
  for (std::size_t b = 0; b < sequences; ++b) {
    std::size_t kept = drafted.tokens[b].empty() ? 0 : 1;
    double chance = kept == 0 ? 0.0 : drafted.confidence[b][0];
    for (; kept > 0 && kept < drafted.tokens[b].size(); ++kept) {
      chance *= drafted.confidence[b][kept];
      const int before = drafted.tokens[b][kept - 1];
      if (std::count(stop_tokens.begin(), stop_tokens.end(), before) > 0 || chance < min_survival)
        break;
    }
    fed[b].insert(fed[b].end(), drafted.tokens[b].begin(),
                  drafted.tokens[b].begin() + static_cast<std::ptrdiff_t>(kept));
    CHECK(round.drafted.confidence[b].size() == kept);
    CHECK(same(round.drafted.tokens[b], std::vector<int>(fed[b].begin() + 1, fed[b].end())));
    CHECK(state->sequences[b]->length == static_cast<int>(kept) + 1);
  }
  const auto best = argmax(*engine, *other, fed, forbidden);
  for (std::size_t b = 0; b < sequences; ++b) CHECK(same(round.best.tokens[b], best[b]));
  const auto again = [&](const std::vector<int>& newest, const std::vector<int>& wanted,
                         const Forbidden& excluded) {
    draft_and_verify(*engine, *state, none, newest, wanted, min_survival, stop_tokens, excluded,
                     log_probs);
  };
  CHECK(refuses([&] { again(last, std::vector<int>(sequences, -1), forbidden); }));
  CHECK(refuses([&] { again(last, counts, {{vocab_size}, {}, {}}); }));
  CHECK(refuses([&] { again({}, counts, forbidden); }));
  again(last, counts, forbidden);
}

// A prompt that is too long for one pass, beside short ones, gives the results of blocks.
void check_long_prompts(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  if (tiny.spec.position == Position::learned) return;  // too few positions
  const int width = dice.pick(1030, 2100), vocab_size = tiny.spec.vocab_size, block = 97;
  const std::vector<int> last = dice.ids(3, vocab_size), capacities(3, width + kSlots);
  const TokenRows tokens = {dice.ids(dice.pick(0, 40), vocab_size), dice.ids(width, vocab_size),
                            dice.ids(dice.pick(0, 3), vocab_size)};
  const std::vector<Example> examples = random_examples(dice, tiny, 3);
  const auto engine = tiny.build("", dice.pick(1, 3));
  const auto whole = engine->encode(sources_of(examples), capacities, true, false);
  const auto pieces = engine->encode(sources_of(examples), capacities, true, false);
  std::vector<float> logits(static_cast<std::size_t>(3 * vocab_size), 0.0f);
  extend(*engine, *whole, tokens, 1, true, logits.data());
  std::vector<float> found(static_cast<std::size_t>(3 * vocab_size), 0.0f);
  for (int begin = 0; begin < width; begin += block) {
    TokenRows some;
    for (const std::vector<int>& row : tokens) {
      const int count = static_cast<int>(row.size());
      some.emplace_back(row.begin() + std::min(begin, count),
                        row.begin() + std::min(begin + block, count));
    }
    extend(*engine, *pieces, some, 1, true, found.data());
  }
  CHECK(same(found, logits));
  const auto drafted = draft(*engine, *whole, last), expected = draft(*engine, *pieces, last);
  for (std::size_t b = 0; b < 3; ++b) CHECK(same(drafted[b], expected[b]));
}

// A refused join leaves both states unchanged; joined rows may join another state.
void check_joins(Dice& dice) {
  const TinyModel tiny = random_model(dice, Precision::int8);
  const auto engine = tiny.build("", dice.pick(1, 2)), stranger = tiny.build("", 1);
  const std::vector<Example> examples = random_examples(dice, tiny, 4);
  const auto open = [&](Engine& one, std::size_t count, bool drafting) {
    const std::vector<Example> some(examples.begin(),
                                    examples.begin() + static_cast<std::ptrdiff_t>(count));
    return one.encode(sources_of(some), room(count), drafting, false);
  };
  const auto state = open(*engine, 2, true), other = open(*engine, 2, true);
  const auto foreign = open(*stranger, 2, true), plain = open(*engine, 2, false);
  CHECK(refuses([&] { state->join(*foreign, {0, 1}); }));
  CHECK(refuses([&] { state->join(*plain, {0, 1}); }));
  const TokenRows wrong = {{0}, {0, 1, 2}, {0, 0}, {2, 2}, {3, 2}, {-1, 0}, {0, 1 << 30}};
  for (const std::vector<int>& at : wrong) {
    CHECK(refuses([&] { state->join(*other, at); }));
    CHECK(state->size() == 2 && other->size() == 2);
  }
  extend(*engine, *other, {examples[0].tokens, examples[1].tokens});
  const std::vector<float> expected = draft(*engine, *other, {1, 2})[1];
  state->join(*other, {2, 0});
  CHECK(state->size() == 3 && other->size() == 0);
  CHECK(same(draft(*engine, *state, {2, 1, 1})[0], expected));
  other->join(*state, {0, 1, 2});
  CHECK(state->size() == 0 && other->size() == 3);
  CHECK(same(draft(*engine, *other, {2, 1, 1})[0], expected));
  state->join(*other, {0, 1, 2});
  CHECK(same(draft(*engine, *state, {2, 1, 1})[0], expected));
}

void check_refusals(Dice& dice) {
  TinyModel tiny = random_model(dice, Precision::int8);
  const auto engine = tiny.build("", 2), other = tiny.build("", 1);
  const std::vector<Example> examples = random_examples(dice, tiny, 2);
  const auto state = engine->encode(sources_of(examples), {8, 9}, true, false);
  std::vector<float> logits(static_cast<std::size_t>(2 * 10 * tiny.spec.vocab_size));
  const auto extend = [&](const TokenRows& tokens, int width = 10) {
    outrider::extend(*engine, *state, tokens, width, false, logits.data());
  };
  {
    const State::ExclusiveUse use(*state);  // as if another thread were calling
    CHECK(refuses([&] { extend({{0}, {0}}); }));
    CHECK(refuses([&] { draft(*engine, *state, {0, 0}); }));
  }
  CHECK(refuses([&] { outrider::extend(*other, *state, {{0}, {0}}, 1, false, logits.data()); }));
  CHECK(refuses([&] { draft(*other, *state, {0, 0}); }));
  CHECK(refuses([&] { argmax(*other, *state, {{0}, {0}}, {}); }));
  CHECK(refuses([&] { extend({{0}, {tiny.spec.vocab_size}}); }));
  CHECK(refuses([&] { extend({{-1}, {0}}); }));
  CHECK(refuses([&] { extend({{0, 0}, {0}}, 1); }));
  CHECK(refuses([&] { extend({std::vector<int>(9, 0), {}}); }));
  CHECK(refuses([&] { extend({{}, std::vector<int>(10, 0)}); }));
  CHECK(refuses([&] { draft(*engine, *state, {0, 0}, {9, 1}); }));
  extend({{}, std::vector<int>(9, 0)});
  state->rollback({0, 0});
  extend({{0}, {0}});
  CHECK(refuses([&] { state->rollback({0}); }));
  CHECK(refuses([&] { state->rollback({2, 1}); }));
  CHECK(refuses([&] { state->select({0, 2}); }));
  for (const TokenRows& listed : std::vector<TokenRows>{{{0}},
                                                        {{0}, {}},
                                                        {{0}, {1, 1}},
                                                        {{0}, {1, 0}},
                                                        {{0}, {-1}},
                                                        {{0}, {tiny.spec.vocab_size}}})
    CHECK(refuses([&] { engine->encode(sources_of(examples), {8, 9}, false, false, listed); }));
  CHECK(refuses([&] { engine->encode({}, {}, false, false); }));
  CHECK(refuses([&] { engine->encode(sources_of(examples), {8}, false, false); }));
  CHECK(refuses([&] { engine->encode(sources_of(examples), {8, 1 << 30}, false, false); }));
  tiny.arrays.begin()->second.second[0] = std::nanf("");
  CHECK(refuses([&] { tiny.build("", 1); }));
  tiny.arrays.erase(tiny.arrays.begin());
  CHECK(refuses([&] { tiny.build("", 3); }));
}

}  // namespace

void check_models(std::uint64_t seed) {
  for (std::uint64_t round = 0; round < 12; ++round) {
    Dice dice(seed * 1000 + 500 + round);
    check_copies(dice);
    check_argmax(dice);
    check_greedy(dice);
    check_cross_attention(dice);
    check_answers(dice);
    check_rounds(dice);
    check_joins(dice);
    if (round % 3 == 0) check_long_prompts(dice);
    if (round % 6 == 0) check_every_panel(dice);
    check_refusals(dice);
  }
}

}  // namespace outrider
