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

// How drafted tokens are chosen: the likeliest, or sampled with `uniform` numbers; known ones
// stand.
struct DraftSampling {
  float temperature = 1.0f;
  const double* uniform = nullptr;      // [sequences][slots]
  const std::int64_t* known = nullptr;  // [sequences][slots], -1 where none is
};

struct DraftOutput {
  std::int64_t* tokens;  // [sequences][slots]
  std::int64_t* ids;     // [sequences][slots][candidates]; null where nobody asks, like the next
  float* probabilities;  // the same
  float* confidence;     // [sequences][slots]
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
  // Reserves memory for the target's states of `counts` new tokens of each sequence.
  void reserve_states(State& state, const std::vector<int>& counts) const;
  // Writes the tapped states of a pass to the drafter's KV caches (every layer projects them to
  // keys and values of its own), and keeps them for `add_last_state`.
  void write_injected_kv(ForwardPass& pass, State& state,
                         const std::vector<KvCache*>& caches) const;
  // Adds a projection of each sequence's last state to the residual stream; slots of a sequence lie
  // together.
  void add_last_state(ForwardPass& pass, const State& state, int first_sequence, int slots) const;
  // Chooses tokens for the sequences of a pass whose stream has left the layers.
  void choose_tokens(ForwardPass& pass, const std::vector<int>& last, int first_sequence, int slots,
                     const DraftSampling& sampling, const DraftOutput& out) const;

  // Reserves buffers to tap so many rows, and to choose tokens for so many.
  void reserve_inputs(SharedBuffers& shared, WorkerBuffers& own, int rows) const;
  void reserve_choice(SharedBuffers& shared, WorkerBuffers& own, int rows) const;

 private:
  int token_of(int column) const;  // the token that a column of the head stands for
  int rows_at_once() const;        // rows whose logits are held at a time
  // Leaves the top k columns of every row and their logits in `candidates`, `candidate_scores`.
  void find_candidates(ForwardPass& pass) const;
  // Chooses one sequence's tokens from left to right: each depends on those before it, through a
  // small recurrent state.
  void choose_block(ForwardPass& pass, int sequence, int last, int slots,
                    const DraftSampling& sampling, const DraftOutput& out) const;

  DrafterSpec spec_;
  int width_ = 0, words_ = 0;
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
