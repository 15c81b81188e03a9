// Taking in tokens: one for each text, or a block, or a whole prompt, each text its own number.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

// The tokens of an extend as rows, and where their logits go.
struct Model::Plan {
  std::vector<Row> rows;
  std::vector<int> scored;   // rows that have logits, in order
  std::vector<int> outputs;  // the place of each among the logits
  int longest = 0;
};

Model::Plan Model::plan(const State& state, const std::vector<int>& tokens, int width,
                        const std::vector<int>& counts, bool last) const {
  if (width < 1 || tokens.size() != area(state.size(), width) ||
      counts.size() != state.texts.size())
    throw std::invalid_argument("extend: tokens must be [rows, tokens], counts [rows]");
  Plan plan;
  plan.rows.reserve(tokens.size());
  for (int b = 0; b < state.size(); ++b) {
    const int count = counts[static_cast<std::size_t>(b)];
    const int length = state.texts[static_cast<std::size_t>(b)]->length;
    if (count < 0 || count > width || (last && count == 0))
      throw std::invalid_argument("extend: a row has " + std::to_string(count) +
                                  " real tokens of " + std::to_string(width));
    if (length + count > state.capacity())
      throw std::invalid_argument(std::to_string(length + count) +
                                  " tokens do not fit a state opened for " +
                                  std::to_string(state.capacity()));
    for (int t = 0; t < count; ++t) {
      const int token = tokens[area(b, width) + static_cast<std::size_t>(t)];
      check_token(token);
      if (!last || t == count - 1) {
        plan.scored.push_back(static_cast<int>(plan.rows.size()));
        plan.outputs.push_back(last ? b : b * width + t);
      }
      plan.rows.push_back({b, token, length + t, length + t + 1});
    }
    plan.longest = std::max(plan.longest, length + count);
  }
  return plan;
}

void Model::extend(State& state, const std::vector<int>& tokens, int width,
                   const std::vector<int>& counts, bool last, float* logits) {
  const State::Use use(state);
  check_state(state);
  const Plan planned = plan(state, tokens, width, counts, last);
  if (planned.rows.empty()) return;
  Views views = view_decoder(state);
  std::vector<KeyValues*> drafter_caches;
  if (state.drafting()) {
    drafter_->make_room(state, counts);
    drafter_caches = view_drafter(state).caches;
  }
  run(
      planned.rows, state.size(),
      [&](Shared& shared, Own& own, int count) {
        prepare(shared, own, decoder_.shape(), count, std::max(planned.longest, views.longest));
        if (state.drafting()) drafter_->prepare(shared, own, count);
      },
      [&](Pass& pass, int, int) {
        views.show(pass, state.angles.get());
        embed(pass, tokens_, places_, *state.sines);
        if (state.drafting()) {
          decoder_.run(pass, [&](int layer) { drafter_->tap(pass, layer); });
          pass.angles = state.drafter_angles.get();
          drafter_->take_in(pass, state, drafter_caches);
        } else {
          decoder_.run(pass);
        }
        score(pass, planned, logits);
      });
  for (int b = 0; b < state.size(); ++b) {
    Text& text = *state.texts[static_cast<std::size_t>(b)];
    text.before = text.length;
    text.length += counts[static_cast<std::size_t>(b)];
  }
}

void Model::score(Pass& pass, const Plan& plan, float* logits) const {
  const int first = static_cast<int>(pass.rows - plan.rows.data()), width = spec_.width;
  const auto begin = std::lower_bound(plan.scored.begin(), plan.scored.end(), first);
  const auto end = std::lower_bound(begin, plan.scored.end(), first + pass.count);
  const int wanted = static_cast<int>(end - begin);
  if (wanted < pass.count)
    for (int n = 0; n < wanted; ++n)  // a row only ever moves to the front
      std::copy_n(pass.own.stream.data() + area(begin[n] - first, width), width,
                  pass.own.stream.data() + area(n, width));
  pass.own.operand.take(kernel_, spec_.precision, pass.own.stream.data(), wanted, width, width);
  head_.multiply(kernel_, pass.own.operand, pass.worker.share(head_.panels()), logits, spec_.words,
                 plan.outputs.data() + (begin - plan.scored.begin()));
}

}  // namespace outrider
