// Example inputs and the outputs of a model.
#pragma once

#include "check.h"
#include "tiny_model.h"

#include <vector>

namespace outrider {

constexpr int kTokens = 20;                  // tokens of a sequence
constexpr int kSlots = 3;                    // tokens of a draft
constexpr int kRoom = kTokens + 1 + kSlots;  // capacity of a state

struct Example {
  std::vector<int> source, tokens;
};

// The outputs for one sequence: logits after every token, a draft before every token, CTC logits.
struct Transcript {
  std::vector<std::vector<float>> logits, drafts;
  std::vector<float> slots;
};

bool equal(const Transcript& left, const Transcript& right);

std::vector<Example> random_examples(Dice& dice, const TinyModel& tiny, int count);
TokenRows sources_of(const std::vector<Example>& examples);

// Returns a row for each sequence with its `counts` slots, each of which consists of token,
// candidates, their probabilities and the confidence.
std::vector<std::vector<float>> draft(Engine& engine, State& state, const std::vector<int>& last,
                                      const std::vector<int>& counts,
                                      const std::vector<std::vector<double>>& uniform = {});
std::vector<std::vector<float>> draft(Engine& engine, State& state, const std::vector<int>& last);

// Returns the logits after all tokens of each sequence.
std::vector<std::vector<float>> extend(Engine& engine, State& state, const TokenRows& tokens);

// Returns the capacity kRoom for each sequence.
std::vector<int> room(std::size_t sequences);

// Returns the CTC logits of each sequence; empty rows if the model has no CTC decoder.
std::vector<std::vector<float>> slots(Engine& engine, State& state, const TinyModel& tiny);

// Computes one example token by token.
Transcript alone(Engine& engine, const TinyModel& tiny, const Example& example);

}  // namespace outrider
