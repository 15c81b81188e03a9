// Calls on a state: appending tokens and scoring what follows, drafting, and CTC.
#pragma once

#include "engine.h"
#include "query.h"

#include <cstdint>
#include <vector>

namespace outrider {

// Appends `tokens[b]`, which may be empty, to sequence b. Writes logits
// [sequences][width][vocab_size], or with `last` [sequences][1][vocab_size], those after the last
// token; nothing is written for a sequence without tokens.
void extend(Engine& engine, State& state, const TokenRows& tokens, int width, bool last,
            float* logits);

// Appends tokens and returns the argmax after each, without forbidden tokens.
TokenRows argmax(Engine& engine, State& state, const TokenRows& tokens, const Forbidden& forbidden);

// Appends tokens and answers queries about disjoint sequences: about all new tokens, or with `last`
// about the last one. Without queries no scores are computed.
std::vector<Answer> answer(Engine& engine, State& state, const TokenRows& tokens,
                           const std::vector<Query>& queries, bool last);

// Appends one token to every sequence, and then up to `steps` - 1 greedy tokens; returns all greedy
// tokens. Stops after a step in which a sequence produced one of `ends`.
TokenRows greedy(Engine& engine, State& state, const std::vector<int>& last, int steps,
                 const std::vector<int>& ends, const Forbidden& forbidden);

// Appends tokens and writes the weights of cross-attention, [token][layer][head][key], the tokens
// of the first sequence first. `keys` is the length of the longest source; weights beyond the end
// of a source are not written.
void cross_attention(Engine& engine, State& state, const TokenRows& tokens, int keys,
                     float* weights);

// Drafts `counts[b]` tokens after `last[b]`, which is not yet appended.
Draft draft(Engine& engine, State& state, const std::vector<int>& last,
            const std::vector<int>& counts, const DraftSampling& sampling,
            const DraftCandidates& out);

// The drafts that were verified, and the argmax after the last token and after each draft.
struct RoundOutput {
  Draft drafted;
  Answer best;
  double drafting_seconds = 0.0;
};

// One round of tandem decoding: truncates sequences to `lengths` tokens, drafts `counts` tokens
// after `last`, and appends `last` and the drafts worth verifying. These are at least one, and as
// many as have a joint confidence of `min_survival`, up to the first of `stop_tokens`.
RoundOutput draft_and_verify(Engine& engine, State& state, const std::vector<int>& lengths,
                             const std::vector<int>& last, const std::vector<int>& counts,
                             double min_survival, const std::vector<int>& stop_tokens,
                             const Forbidden& forbidden, bool log_probs);

// Scores the slots of whole texts, [sequences][slots][vocab_size]. `known` is [sequences][slots],
// negative for unknown tokens, or null. A sequence uses `upsample` slots for each source token.
void ctc(Engine& engine, State& state, const std::int64_t* known, int sequences, int slots,
         float* logits);

}  // namespace outrider
