// Taking tokens in: all calls that do so run the decoder like this, and differ in what they do with
// what leaves it.
#pragma once

#include "run.h"

#include <algorithm>
#include <vector>

namespace outrider {

// The tokens of a call as rows.
struct Model::Plan {
  std::vector<Row> rows;
  std::vector<int> counts;  // of each sequence
  int longest = 0;
  const CrossWeights* cross_weights = nullptr;  // where to write down what rows look at
};

template <typename PassRow>
void Model::score(ForwardPass& pass, const State& state, int rows, const PassRow& pass_row,
                  float* logits, const int* out_rows) const {
  const Range mine = pass.worker.share(head_.panels());
  head_.multiply(kernel_, pass.own.operand, mine, logits + mine.begin * kPanel, spec_.words,
                 out_rows);
  const Range columns{mine.begin * kPanel, std::min(mine.end * kPanel, spec_.words)};
  for (int n = 0; n < rows; ++n)
    if (const Shortlist* list = state.shortlist(pass.rows[pass_row(n)].sequence))
      list->leave_out(columns,
                      logits + area(out_rows == nullptr ? n : out_rows[n], spec_.words));
}

// `prepare` makes room as in `run`; `use_hidden` gets passes whose stream has left the layers.
template <typename Prepare, typename UseHidden>
void Model::run_decoder(State& state, const Plan& plan, const Prepare& prepare,
                        const UseHidden& use_hidden) {
  constexpr int kRowsAtOnce = 1024;  // tokens of a long prompt that are on their way at a time
  if (plan.rows.empty()) return;
  CacheViews views = view(state, &Caches::decoder);
  std::vector<KvCache*> drafter_caches;
  if (state.drafting()) {
    drafter_->reserve_states(state, plan.counts);
    drafter_caches = view(state, &Caches::drafter).caches;
  }
  run(
      plan.rows, state.size(), kRowsAtOnce,
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, decoder_.shape(), count,
                        std::max(plan.longest, views.longest));
        if (state.drafting()) drafter_->reserve_inputs(shared, own, count);
        prepare(shared, own, count);
      },
      [&](ForwardPass& pass) {
        views.attach(pass, state.angles.get(), state.bias.get());
        pass.cross_weights = plan.cross_weights;
        embed(pass, tokens_, position_table_, state.sines.get(), embedding_norm_);
        if (state.drafting()) {
          decoder_.run(pass, [&](int layer) { drafter_->tap(pass, layer); });
          pass.angles = state.drafter_angles.get();
          drafter_->write_injected_kv(pass, state, drafter_caches);
        } else {
          decoder_.run(pass);
        }
        use_hidden(pass);
      });
  for (std::size_t b = 0; b < plan.counts.size(); ++b) {
    if (plan.counts[b] == 0) continue;
    Sequence& sequence = *state.sequences[b];
    sequence.length_before = sequence.length;
    sequence.length += plan.counts[b];
  }
}

}  // namespace outrider
