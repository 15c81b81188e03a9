// Running sequences: what the model keeps of each. They join a state and leave it at any time.
#pragma once

#include "kv_cache.h"
#include "offset_bias.h"
#include "positions.h"
#include "shortlist.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

namespace outrider {

// KV caches of the two stacks that attend; the drafter's is empty where nothing drafts.
struct Caches {
  KvCache decoder, drafter;
};

// What is kept of one source: keys and values of cross-attention. Beams share it.
struct Source : Caches {
  int length = 0;
  std::vector<float> encoder_output;  // for a CTC decoder; else empty
  std::unique_ptr<const Shortlist> shortlist;  // null where every word may follow
};

struct Sequence : Caches {
  int capacity = 0;       // tokens there is room for
  int length = 0;         // tokens taken in
  int length_before = 0;  // tokens taken in before the last extend that gave it any
  std::shared_ptr<const Source> source;
  // Tapped states (what the drafter reads of the target) of the tokens of the last extend, and of
  // the one token before them.
  std::vector<float> recent_states, state_before_recent;
  int recent_start = 0;

  Sequence copy() const;
  // The tapped state of the newest token, `width` numbers; null before the first.
  const float* last_state(int width) const;
};

class State {
 public:
  State(bool drafting, bool parallel) : drafting_(drafting), parallel_(parallel) {}

  int size() const { return static_cast<int>(sequences.size()); }
  // What may follow a sequence; null where every word may.
  const Shortlist* shortlist(int sequence) const {
    const auto& source = sequences[static_cast<std::size_t>(sequence)]->source;
    return source ? source->shortlist.get() : nullptr;
  }
  bool drafting() const { return drafting_; }
  bool parallel() const { return parallel_; }

  // Makes sequence b hold `lengths[b]` tokens; only those of the last extend can be forgotten.
  void rollback(const std::vector<int>& lengths);
  // Makes sequence n what sequence rows[n] was.
  void select(const std::vector<int>& rows);
  // Makes sequence at[n] what sequence n of `other` was, which is empty afterwards. What stood there
  // is gone; a place behind the last is a new one.
  void join(State& other, const std::vector<int>& at);
  std::size_t bytes() const;

  std::vector<std::unique_ptr<Sequence>> sequences;
  std::shared_ptr<const SineTable> sines, angles, drafter_angles;
  std::shared_ptr<const OffsetBias> bias;  // of the decoder
  std::shared_ptr<const BufferPool> owner;  // the pool of the model whose state this is

  // Held during a call: a state has one caller at a time.
  class ExclusiveUse {
   public:
    explicit ExclusiveUse(State& state) : state_(state) {
      if (state_.used_.exchange(true, std::memory_order_acquire))
        throw std::invalid_argument("this state is in use by another thread");
    }
    ~ExclusiveUse() { state_.used_.store(false, std::memory_order_release); }
    ExclusiveUse(const ExclusiveUse&) = delete;
    ExclusiveUse& operator=(const ExclusiveUse&) = delete;

   private:
    State& state_;
  };

 private:
  bool drafting_, parallel_;
  std::atomic<bool> used_{false};
};

}  // namespace outrider
