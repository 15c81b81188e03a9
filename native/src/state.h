// Running sequences and their caches. Sequences can join and leave a state at any time.
#pragma once

#include "kv_cache.h"
#include "matrix.h"
#include "positions.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

namespace outrider {

using TokenRows = std::vector<std::vector<int>>;  // tokens of each sequence

constexpr float kUnlisted = -3e38f;  // score of a token outside the shortlist

// The target tokens allowed for a source (lexical shortlist), and their columns of the head.
struct Shortlist {
  std::vector<int> tokens;  // ascending
  Buffer<unsigned char> numbers;
  Matrix head;  // points into `numbers`

  Shortlist(std::vector<int> listed, const Matrix& whole)
      : tokens(std::move(listed)), head(whole.gather(tokens, numbers)) {}

  // The column of a token; -1 if it is not listed.
  int find(int token) const {
    const auto place = std::lower_bound(tokens.begin(), tokens.end(), token);
    return place == tokens.end() || *place != token ? -1 : static_cast<int>(place - tokens.begin());
  }
  // Masks the unlisted tokens in some columns of a row of scores.
  void mask(Range columns, float* row) const {
    auto listed = std::lower_bound(tokens.begin(), tokens.end(), columns.begin);
    for (int token = columns.begin; token < columns.end; ++token) {
      if (listed != tokens.end() && *listed == token)
        ++listed;
      else
        row[token] = kUnlisted;
    }
  }
  std::size_t bytes() const { return numbers.size() + tokens.size() * sizeof(int); }
};

// KV caches of the decoder and of the drafter; the latter is empty without drafting.
struct Caches {
  KvCache decoder, drafter;
};

// An encoded source: keys and values of cross-attention. Beams share it.
struct Source : Caches {
  int length = 0;
  std::vector<float> encoder_output;           // for a CTC decoder, else empty
  std::unique_ptr<const Shortlist> shortlist;  // null for the whole vocabulary
};

struct Sequence : Caches {
  int capacity = 0;       // maximal number of tokens
  int length = 0;         // cached tokens
  int length_before = 0;  // cached tokens before the last extend of this sequence
  std::shared_ptr<const Source> source;
  // Tapped states (the drafter's input from the target) of the tokens of the last extend, and of
  // the token before them.
  std::vector<float> recent_states, state_before_recent;
  int recent_start = 0;

  Sequence copy() const;
  // The tapped state of the last token, `width` numbers; null before the first.
  const float* last_state(int width) const;
};

class State {
 public:
  State(bool drafting, bool parallel) : drafting_(drafting), parallel_(parallel) {}

  int size() const { return static_cast<int>(sequences.size()); }
  // The shortlist of a sequence; null for the whole vocabulary.
  const Shortlist* shortlist(int sequence) const {
    const auto& source = sequences[static_cast<std::size_t>(sequence)]->source;
    return source ? source->shortlist.get() : nullptr;
  }
  bool drafting() const { return drafting_; }
  bool parallel() const { return parallel_; }

  // Truncates sequence b to `lengths[b]` tokens, at most undoing the last extend.
  void rollback(const std::vector<int>& lengths);
  // Sequence n becomes the former sequence rows[n].
  void select(const std::vector<int>& rows);
  // Moves sequence n of `other` to place at[n], replacing the sequence there or appending.
  void join(State& other, const std::vector<int>& at);
  std::size_t bytes() const;

  std::vector<std::unique_ptr<Sequence>> sequences;
  std::shared_ptr<const SineTable> sines, rotary, drafter_rotary;
  std::shared_ptr<const OffsetBias> bias;   // of the decoder
  std::shared_ptr<const BufferPool> owner;  // buffer pool of the engine that opened the state

  // Held during a call, because a state allows one caller at a time.
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
