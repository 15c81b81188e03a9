#include "examples.h"

#include <algorithm>

namespace outrider {

bool equal(const Transcript& left, const Transcript& right) {
  if (left.logits.size() != right.logits.size() || left.drafts.size() != right.drafts.size())
    return false;
  for (std::size_t i = 0; i < left.logits.size(); ++i)
    if (!same(left.logits[i], right.logits[i]) || !same(left.drafts[i], right.drafts[i]))
      return false;
  return same(left.slots, right.slots);
}

TokenRows sources_of(const std::vector<Example>& examples) {
  TokenRows sources;
  for (const Example& example : examples) sources.push_back(example.source);
  return sources;
}

std::vector<Example> random_examples(Dice& dice, const TinyModel& tiny, int count) {
  std::vector<Example> examples;
  for (int n = 0; n < count; ++n) {
    Example example;
    if (tiny.has_encoder()) example.source = dice.ids(dice.pick(1, 12), tiny.spec.vocab_size);
    example.tokens = dice.ids(dice.pick(1, kTokens), tiny.spec.vocab_size);
    examples.push_back(example);
  }
  return examples;
}

std::vector<std::vector<float>> draft(Engine& engine, State& state, const std::vector<int>& last,
                                      const std::vector<int>& counts,
                                      const std::vector<std::vector<double>>& uniform) {
  const std::size_t sequences = last.size(),
                    few = static_cast<std::size_t>(engine.model().candidates());
  int longest = 0;
  for (int count : counts) longest = std::max(longest, count);
  const auto wide = static_cast<std::size_t>(longest);
  std::vector<std::int64_t> ids(sequences * wide * few, -7);
  std::vector<float> probabilities(ids.size(), -7.0f);
  const Draft found = draft(engine, state, last, counts, {1.0f, uniform, {}},
                            {ids.data(), probabilities.data(), longest});
  std::vector<std::vector<float>> out(sequences);
  for (std::size_t b = 0; b < sequences; ++b) {
    CHECK(found.tokens[b].size() == static_cast<std::size_t>(counts[b]));
    for (std::size_t i = 0; i < wide; ++i) {
      const std::size_t at = (b * wide + i) * few;
      if (i >= found.tokens[b].size()) {
        CHECK(few == 0 || ids[at] == -7);
        continue;
      }
      out[b].push_back(static_cast<float>(found.tokens[b][i]));
      for (std::size_t c = at; c < at + few; ++c) {
        out[b].push_back(static_cast<float>(ids[c]));
        out[b].push_back(probabilities[c]);
      }
      out[b].push_back(found.confidence[b][i]);
    }
  }
  return out;
}

std::vector<std::vector<float>> draft(Engine& engine, State& state, const std::vector<int>& last) {
  return draft(engine, state, last, std::vector<int>(last.size(), kSlots));
}

std::vector<std::vector<float>> extend(Engine& engine, State& state, const TokenRows& tokens) {
  std::size_t width = 0;
  const auto vocab_size = static_cast<std::size_t>(engine.model().spec.vocab_size);
  for (const std::vector<int>& row : tokens) width = std::max(width, row.size());
  std::vector<float> logits(tokens.size() * width * vocab_size, -7.0f);
  extend(engine, state, tokens, static_cast<int>(width), false, logits.data());
  std::vector<std::vector<float>> out;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    const float* row = logits.data() + b * width * vocab_size;
    const float* end = row + tokens[b].size() * vocab_size;
    out.emplace_back(row, end);
    CHECK(std::all_of(end, row + width * vocab_size, [](float x) { return x == -7.0f; }));
  }
  return out;
}

std::vector<int> room(std::size_t sequences) { return std::vector<int>(sequences, kRoom); }

std::vector<std::vector<float>> slots(Engine& engine, State& state, const TinyModel& tiny) {
  const auto sequences = static_cast<std::size_t>(state.size());
  std::vector<std::vector<float>> out(sequences);
  if (!tiny.ctc) return out;
  int width = 0;
  for (const auto& sequence : state.sequences)
    width = std::max(width, sequence->source->length * engine.model().upsample());
  const auto wide = static_cast<std::size_t>(width),
             vocab_size = static_cast<std::size_t>(tiny.spec.vocab_size);
  std::vector<std::int64_t> known(sequences * wide, -1);
  for (std::size_t b = 0; b < sequences; ++b) known[b * wide] = 1;
  std::vector<float> logits(sequences * wide * vocab_size, -7.0f);
  ctc(engine, state, known.data(), state.size(), width, logits.data());
  for (std::size_t b = 0; b < sequences; ++b) {
    const auto real =
        static_cast<std::size_t>(state.sequences[b]->source->length * engine.model().upsample());
    const float* row = logits.data() + b * wide * vocab_size;
    out[b].assign(row, row + real * vocab_size);
    CHECK(std::all_of(row + real * vocab_size, row + wide * vocab_size,
                      [](float x) { return x == -7.0f; }));
  }
  return out;
}

Transcript alone(Engine& engine, const TinyModel& tiny, const Example& example) {
  const auto state = engine.encode({example.source}, {kRoom}, true, tiny.ctc.has_value());
  Transcript answer;
  answer.slots = slots(engine, *state, tiny)[0];
  for (int token : example.tokens) {
    answer.drafts.push_back(draft(engine, *state, {token})[0]);
    answer.logits.push_back(extend(engine, *state, {{token}})[0]);
  }
  return answer;
}

}  // namespace outrider
