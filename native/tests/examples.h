// Examples to run a model on, and what it says of them.
#pragma once

#include "check.h"
#include "tiny_model.h"

#include <vector>

namespace outrider {

constexpr int kTokens = 20;                  // tokens of a sequence
constexpr int kSlots = 3;                    // tokens of a draft
constexpr int kRoom = kTokens + 1 + kSlots;  // of a state

struct Example {
  std::vector<int> source, tokens;
};

// What a model says of one sequence: logits after every token, a draft before every one, CTC's
// logits.
struct Transcript {
  std::vector<std::vector<float>> logits, drafts;
  std::vector<float> slots;
};

bool equal(const Transcript& left, const Transcript& right);

std::vector<Example> random_examples(Dice& dice, const TinyModel& tiny, int count);
std::vector<std::vector<int>> sources_of(const std::vector<Example>& examples);

// Slot by slot the token, its candidates, their probabilities and the confidence; a row for each
// sequence, which has `counts` slots.
std::vector<std::vector<float>> draft(Model& model, State& state, const std::vector<int>& last,
                                      const std::vector<int>& counts,
                                      const std::vector<std::vector<double>>& uniform = {});
std::vector<std::vector<float>> draft(Model& model, State& state, const std::vector<int>& last);

// The logits after all tokens of each sequence.
std::vector<std::vector<float>> extend(Model& model, State& state,
                                       const std::vector<std::vector<int>>& tokens);

// So many sequences, each with room for kRoom tokens.
std::vector<int> room(std::size_t sequences);

// CTC's logits, a row for each sequence; empty ones where the model has no CTC decoder.
std::vector<std::vector<float>> slots(Model& model, State& state, const TinyModel& tiny);

// One example, token by token.
Transcript alone(Model& model, const TinyModel& tiny, const Example& example);

}  // namespace outrider
