#include "examples.h"

#include <algorithm>

namespace outrider {

bool equal(const Answer& left, const Answer& right) {
  if (left.logits.size() != right.logits.size() || left.drafts.size() != right.drafts.size())
    return false;
  for (std::size_t i = 0; i < left.logits.size(); ++i)
    if (!same(left.logits[i], right.logits[i]) || !same(left.drafts[i], right.drafts[i]))
      return false;
  return same(left.slots, right.slots);
}

std::vector<std::vector<int>> sources_of(const std::vector<Example>& examples) {
  std::vector<std::vector<int>> sources;
  for (const Example& example : examples) sources.push_back(example.source);
  return sources;
}

std::vector<Example> random_examples(Dice& dice, const TinyModel& tiny, int count) {
  std::vector<Example> examples;
  for (int n = 0; n < count; ++n) {
    Example example;
    if (tiny.reads()) example.source = dice.ids(dice.pick(1, 12), tiny.spec.words);
    example.tokens = dice.ids(dice.pick(1, kTokens), tiny.spec.words);
    examples.push_back(example);
  }
  return examples;
}

std::vector<std::vector<float>> draft(Model& model, State& state, const std::vector<int>& last,
                                      int slots, const double* uniform) {
  const std::size_t sequences = last.size(), count = static_cast<std::size_t>(model.candidates());
  const auto wide = static_cast<std::size_t>(slots);
  std::vector<std::int64_t> tokens(sequences * wide), ids(tokens.size() * count);
  std::vector<float> probabilities(ids.size()), confidence(tokens.size());
  DraftSampling sampling;
  sampling.uniform = uniform;
  model.draft(state, last, slots, sampling,
              {tokens.data(), ids.data(), probabilities.data(), confidence.data()});
  std::vector<std::vector<float>> out(sequences);
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
  const auto sequences = static_cast<std::size_t>(state.size());
  std::vector<std::vector<float>> out(sequences);
  if (!tiny.ctc) return out;
  int width = 0;
  for (const auto& sequence : state.sequences)
    width = std::max(width, sequence->source->length * model.upsample());
  const auto wide = static_cast<std::size_t>(width),
             words = static_cast<std::size_t>(tiny.spec.words);
  std::vector<std::int64_t> known(sequences * wide, -1);
  for (std::size_t b = 0; b < sequences; ++b) known[b * wide] = 1;
  std::vector<float> logits(sequences * wide * words, -7.0f);
  model.ctc(state, known.data(), state.size(), width, logits.data());
  for (std::size_t b = 0; b < sequences; ++b) {
    const auto real =
        static_cast<std::size_t>(state.sequences[b]->source->length * model.upsample());
    const float* row = logits.data() + b * wide * words;
    out[b].assign(row, row + real * words);
    CHECK(std::all_of(row + real * words, row + wide * words, [](float x) { return x == -7.0f; }));
  }
  return out;
}

Answer alone(Model& model, const TinyModel& tiny, const Example& example) {
  const auto state = model.encode({example.source}, kRoom, true, tiny.ctc.has_value());
  Answer answer;
  answer.slots = slots(model, *state, tiny)[0];
  for (int token : example.tokens) {
    answer.drafts.push_back(draft(model, *state, {token})[0]);
    std::vector<float> logits(static_cast<std::size_t>(tiny.spec.words));
    model.extend(*state, {token}, 1, {1}, false, logits.data());
    answer.logits.push_back(logits);
  }
  return answer;
}

}  // namespace outrider
