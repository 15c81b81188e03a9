// The block drafter: guesses the next k tokens in one pass (see models/drafter/model.py for the
// equations).
#pragma once

#include "layer.h"
#include "state.h"

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

struct DrafterSpec : RiderSpec {
  int block = 0, rank = 0, candidates = 0;
  std::vector<int> taps;
  std::vector<int> kept;  // tokens that may be drafted, in order; empty for all
};

// How tokens are chosen: the likeliest, or drawn with `uniform` numbers; `told` ones stand.
struct Choice {
  float temperature = 1.0f;
  const double* uniform = nullptr;     // [texts][slots]
  const std::int64_t* told = nullptr;  // [texts][slots], -1 where none is
};

struct Drafted {
  std::int64_t* tokens;  // [texts][slots]
  std::int64_t* ids;     // [texts][slots][candidates]; null where nobody asks, like the next
  float* probabilities;  // the same
  float* confidence;     // [texts][slots]
};

class Drafter {
 public:
  Drafter(const Weights& weights, const DrafterSpec& spec, const LayerShape& target, int words);

  const DrafterSpec& spec() const { return spec_; }
  const Stack& stack() const { return stack_; }
  int tapped_width() const { return static_cast<int>(spec_.taps.size()) * width_; }
  int candidates() const;
  const float* mask() const { return mask_.data(); }
  const float* slot(int index) const;

  // Takes over what the target's layer `layer` gave for the rows of a pass, if it is tapped.
  void tap(Pass& pass, int layer) const;
  // Makes room for the states of `counts` new tokens of each text.
  void make_room(State& state, const std::vector<int>& counts) const;
  // Keeps the tapped states of a pass as keys and values, and the newest of each text.
  void take_in(Pass& pass, State& state, const std::vector<KeyValues*>& caches) const;
  // Adds to the stream what the newest states say; slots of a text lie together.
  void add_newest(Pass& pass, const State& state, int first_text, int slots) const;
  // Chooses tokens for the texts of a pass whose stream has left the layers.
  void choose(Pass& pass, const std::vector<int>& last, int first_text, int slots,
              const Choice& choice, const Drafted& out) const;

  // Makes room to take in so many rows, and to choose tokens for so many.
  void prepare(Shared& shared, Own& own, int rows) const;
  void prepare_choice(Shared& shared, Own& own, int rows) const;
  std::size_t bytes() const;

 private:
  int word(int column) const;  // the token that a column of the head stands for
  int scored_at_once() const;  // rows whose scores of all words are there at a time
  // Leaves the best columns of every row and their scores in `best`.
  void shortlist(Pass& pass) const;
  void walk(Pass& pass, int text, int last, int slots, const Choice& choice,
            const Drafted& out) const;

  DrafterSpec spec_;
  int width_ = 0, words_ = 0;
  Precision precision_;
  Stack stack_;
  std::vector<Norm> state_norms_;
  std::vector<Matrix> inject_;
  Matrix from_last_, head_, from_slot_, from_state_;
  Norm norm_;
  std::vector<float> mask_, slots_, confidence_, out_, token_;
  float confidence_bias_ = 0.0f;
};

}  // namespace outrider
