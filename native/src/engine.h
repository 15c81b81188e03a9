// Runs a model: threads, buffers, and the distribution of rows among threads.
#pragma once

#include "model.h"
#include "team.h"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace outrider {

constexpr int kMaxTokens = 1 << 20;  // maximal capacity of a sequence

// Several threads can use one engine, each with its own state.
class Engine {
 public:
  Engine(Model model, int threads);

  const Model& model() const { return model_; }
  int threads() const { return team_.threads(); }
  const std::shared_ptr<BufferPool>& buffer_pool() const { return pool_; }

  // Encodes sources and opens a sequence for each, with capacity for `capacities[b]` tokens. The
  // sources of a language model are empty. `shortlists` is empty or has the allowed target tokens
  // of each source, ascending; all others are masked, except for a CTC decoder.
  std::unique_ptr<State> encode(const TokenRows& sources, const std::vector<int>& capacities,
                                bool drafting, bool parallel, const TokenRows& shortlists = {});

  // Throws std::invalid_argument unless this engine opened the state.
  void check_state(const State& state) const;

  using Prepare = std::function<void(SharedBuffers&, WorkerBuffers&, int rows)>;
  using Work = std::function<void(ForwardPass&)>;
  // Runs `work` on all rows, at most `max_rows` at a time, divided among the threads. `prepare`
  // first reserves the buffers of each thread for a number of rows; `work` must not throw.
  void run(std::span<const Row> rows, int sequences, int max_rows, const Prepare& prepare,
           const Work& work);

 private:
  // The buffers of a call, for each thread.
  struct Scratch {
    std::vector<SharedBuffers> shared;
    std::vector<WorkerBuffers> own;
  };

  std::unique_ptr<Scratch> acquire_scratch();
  void release_scratch(std::unique_ptr<Scratch> scratch);
  std::unique_ptr<State> open_state(const std::vector<std::shared_ptr<Source>>& sources,
                                    const std::vector<int>& capacities, bool drafting,
                                    bool parallel);
  std::shared_ptr<Source> open_source(int length, bool decoded, bool drafting, bool parallel) const;
  void run_encoder(const TokenRows& tokens, const std::vector<std::shared_ptr<Source>>& sources,
                   const State& state, bool decoded);

  const Model model_;
  TableCache<SineTable> sines_, rotary_, drafter_rotary_;
  TableCache<OffsetBias> encoder_bias_, decoder_bias_;
  Team team_;
  std::vector<std::unique_ptr<Scratch>> idle_;
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
};

}  // namespace outrider
