// The block drafter: proposes the next k tokens in one pass (equations in models/drafter/model.py).
#pragma once

#include "layer.h"
#include "state.h"

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

struct DrafterSpec : SideDecoderSpec {
  int block = 0, rank = 0, candidates = 0;
  std::vector<int> taps;
  std::vector<int> shortlist;  // tokens that can be drafted, ascending; empty for all
};

// How tokens are chosen: the argmax, or sampled with `uniform` numbers. Lists are empty, or empty
// for some sequences, or as long as the block.
struct DraftSampling {
  float temperature = 1.0f;
  std::vector<std::vector<double>> uniform;
  TokenRows known;  // tokens that are given; -1 for unknown
};

// The block of one sequence: adjacent rows of a draft.
struct DraftBlock {
  int sequence = 0, first = 0, count = 0;
  int last = 0;                     // the token before the block
  const double* uniform = nullptr;  // `count` numbers, or null
  const int* known = nullptr;       // `count` tokens, or null
};

// The rows of a draft. Sequences that draft no tokens have no block.
struct DraftPlan {
  std::vector<Row> rows;
  std::vector<int> block_of;  // of each row
  std::vector<DraftBlock> blocks;
  int longest = 0;  // block
  float temperature = 1.0f;

  // The blocks of a pass, which contains whole blocks.
  Range blocks_of(const ForwardPass& pass) const {
    const auto first = static_cast<std::size_t>(pass.rows - rows.data());
    return {block_of[first], block_of[first + static_cast<std::size_t>(pass.count) - 1] + 1};
  }
  const DraftBlock& block(int index) const { return blocks[static_cast<std::size_t>(index)]; }
};

// Drafted tokens of each sequence and the predicted probability that each is accepted.
struct Draft {
  TokenRows tokens;
  std::vector<std::vector<float>> confidence;
};

// Output for the candidates of every slot, [sequences][slots][candidates]; null if not requested.
struct DraftCandidates {
  std::int64_t* ids = nullptr;
  float* probabilities = nullptr;
  int slots = 0;  // of a sequence; unused slots are not written
};

class Drafter {
 public:
  Drafter(PackedWeights& weights, const DrafterSpec& spec, const LayerShape& target,
          int vocab_size);

  const Stack& stack() const { return stack_; }
  int tapped_width() const { return static_cast<int>(spec_.taps.size()) * width_; }
  int candidates() const;
  const float* mask() const { return mask_.data(); }
  const float* slot(int index) const;

  // Stores the normalised residual stream after the target's layer `layer`, if it is tapped.
  void tap(ForwardPass& pass, int layer) const;
  // Reserves memory for the tapped states of `counts` new tokens of each sequence.
  void reserve_states(State& state, const std::vector<int>& counts) const;
  // Projects the tapped states of a pass to keys and values of every drafter layer, writes them to
  // the drafter's KV caches, and stores the states for `add_last_state`.
  void write_injected_kv(ForwardPass& pass, State& state,
                         const std::vector<KvCache*>& caches) const;
  // Adds a projection of each sequence's last state to the residual stream of its block.
  void add_last_state(ForwardPass& pass, const State& state, const DraftPlan& plan) const;
  // Chooses the tokens of a pass's blocks from the final residual stream.
  void choose_tokens(ForwardPass& pass, const DraftPlan& plan, Draft& draft,
                     const DraftCandidates& out) const;

  // Reserves buffers for tapping, and for choosing tokens of, `rows` rows.
  void reserve_inputs(SharedBuffers& shared, WorkerBuffers& own, int rows) const;
  void reserve_choice(SharedBuffers& shared, WorkerBuffers& own, int rows) const;

 private:
  int token_of(int column) const;  // the token of a column of the head
  int rows_at_once() const;        // rows whose logits are in memory at once
  // Writes the top k columns of every row and their logits to `candidates`, `candidate_scores`.
  void find_candidates(ForwardPass& pass) const;
  // Chooses the tokens of a block from left to right: each depends on the previous ones through a
  // small recurrent state. `first` is the block's first row in the pass.
  void choose_block(ForwardPass& pass, const DraftBlock& block, int first, float temperature,
                    int* tokens, float* confidence, const DraftCandidates& out) const;

  DrafterSpec spec_;
  int width_ = 0;
  Precision precision_;
  Stack stack_;
  std::vector<Norm> state_norms_;
  std::vector<Matrix> inject_;
  Matrix from_last_, head_, from_slot_, from_state_;
  Norm norm_;
  std::span<const float> mask_, slots_, confidence_, out_, token_;
  float confidence_bias_ = 0.0f;
};

}  // namespace outrider
