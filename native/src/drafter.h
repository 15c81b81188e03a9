// The block drafter: proposes the next k tokens in one pass (see models/drafter/model.py for the
// equations).
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
  std::vector<int> kept;  // tokens that may be drafted, in order; empty for all
};

// How drafted tokens are chosen, for each sequence: the likeliest, or sampled with `uniform`
// numbers; known ones stand. What is empty says nothing, of one sequence or of all.
struct DraftSampling {
  std::vector<float> temperatures;           // 1 where nothing is said
  std::vector<std::vector<double>> uniform;  // one for each token
  std::vector<std::vector<int>> known;       // one for each token, -1 where none is
};

// The block of one sequence: rows of a draft that lie together.
struct DraftBlock {
  int sequence = 0, first = 0, count = 0;
  int last = 0;  // the token before the block
  float temperature = 1.0f;
  const double* uniform = nullptr;  // of the block; null for none, like the next
  const int* known = nullptr;
};

// All slots as rows, and their blocks; a sequence that is to guess nothing has none.
struct DraftPlan {
  std::vector<Row> rows;
  std::vector<int> block_of;  // for each row
  std::vector<DraftBlock> blocks;
  int longest = 0;  // block

  // The blocks of a pass, which are whole.
  Range blocks_of(const ForwardPass& pass) const {
    const auto first = static_cast<std::size_t>(pass.rows - rows.data());
    return {block_of[first], block_of[first + static_cast<std::size_t>(pass.count) - 1] + 1};
  }
  const DraftBlock& block(int index) const { return blocks[static_cast<std::size_t>(index)]; }
};

// What was guessed, for each sequence.
struct Draft {
  std::vector<std::vector<int>> tokens;
  std::vector<std::vector<float>> confidence;
};

// The candidates of every slot, [sequences][slots][candidates]; null where nobody asks.
struct DraftCandidates {
  std::int64_t* ids = nullptr;
  float* probabilities = nullptr;
  int slots = 0;  // of a sequence; those it does not guess are left alone
};

class Drafter {
 public:
  Drafter(PackedWeights& weights, const DrafterSpec& spec, const LayerShape& target, int words);

  const DrafterSpec& spec() const { return spec_; }
  const Stack& stack() const { return stack_; }
  int tapped_width() const { return static_cast<int>(spec_.taps.size()) * width_; }
  int candidates() const;
  const float* mask() const { return mask_.data(); }
  const float* slot(int index) const;

  // Keeps the residual stream behind the target's layer `layer`, normed, if that layer is tapped.
  void tap(ForwardPass& pass, int layer) const;
  // Reserves memory for the target's states of `counts` new tokens of each sequence that has any.
  void reserve_states(State& state, const std::vector<int>& counts) const;
  // Writes the tapped states of a pass to the drafter's KV caches (every layer projects them to
  // keys and values of its own), and keeps them for `add_last_state`.
  void write_injected_kv(ForwardPass& pass, State& state,
                         const std::vector<KvCache*>& caches) const;
  // Adds a projection of each sequence's last state to the residual stream of its block.
  void add_last_state(ForwardPass& pass, const State& state, const DraftPlan& plan) const;
  // Chooses tokens for the blocks of a pass whose stream has left the layers.
  void choose_tokens(ForwardPass& pass, const DraftPlan& plan, Draft& draft,
                     const DraftCandidates& out) const;

  // Reserves buffers to tap so many rows, and to choose tokens for so many.
  void reserve_inputs(SharedBuffers& shared, WorkerBuffers& own, int rows) const;
  void reserve_choice(SharedBuffers& shared, WorkerBuffers& own, int rows) const;

 private:
  int token_of(int column) const;  // the token that a column of the head stands for
  int rows_at_once() const;        // rows whose logits are held at a time
  // Leaves the top k columns of every row and their logits in `candidates`, `candidate_scores`.
  void find_candidates(ForwardPass& pass) const;
  // Chooses the tokens of a block from left to right: each depends on those before it, through a
  // small recurrent state. `first` is the block's first row in the pass.
  void choose_block(ForwardPass& pass, const DraftBlock& block, int first, int* tokens,
                    float* confidence, const DraftCandidates& out) const;

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
