// Texts on their way: what the model remembers of each.
#pragma once

#include "key_values.h"
#include "positions.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

namespace outrider {

// What attention remembers, for each of the two that attend.
struct Remembered {
  KeyValues decoder, drafter;
};

// What is read of one source; several texts may share it.
struct Source : Remembered {
  int length = 0;
  std::vector<float> memory;  // the encoder's output, where someone still reads it
};

struct Text : Remembered {
  int length = 0;  // tokens taken in
  int before = 0;  // tokens taken in before the last extend
  std::shared_ptr<const Source> source;
  // The model's states of the tokens of the last extend, as a drafter keeps them, and of the one
  // before them.
  std::vector<float> recent, earlier;
  int recent_start = 0;

  Text copy() const;
  // The state of the newest token, `width` numbers; null before the first.
  const float* newest(int width) const;
};

class State {
 public:
  State(int capacity, bool drafting, bool parallel)
      : capacity_(capacity), drafting_(drafting), parallel_(parallel) {}

  int size() const { return static_cast<int>(texts.size()); }
  int capacity() const { return capacity_; }
  bool drafting() const { return drafting_; }
  bool parallel() const { return parallel_; }

  // Makes text b hold `lengths[b]` tokens; only those of the last extend can be forgotten.
  void rollback(const std::vector<int>& lengths);
  // Makes text n what text rows[n] was.
  void select(const std::vector<int>& rows);
  std::size_t bytes() const;

  std::vector<std::unique_ptr<Text>> texts;
  std::shared_ptr<const SineTable> sines, angles, drafter_angles;
  std::shared_ptr<const Recycler> owner;  // the memory of the model whose state this is

  // Held during a call: a state has one caller at a time.
  class Use {
   public:
    explicit Use(State& state) : state_(state) {
      if (state_.used_.exchange(true, std::memory_order_acquire))
        throw std::invalid_argument("this state is in use by another thread");
    }
    ~Use() { state_.used_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    State& state_;
  };

 private:
  int capacity_;
  bool drafting_, parallel_;
  std::atomic<bool> used_{false};
};

}  // namespace outrider
