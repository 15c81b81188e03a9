// Whole texts at once: the slots of the CTC decoder (see models/ctc.py for the equations).
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

void Model::ctc(State& state, const std::int64_t* told, int texts, int slots, float* logits) {
  const State::Use use(state);
  check_state(state);
  if (texts != state.size()) throw std::invalid_argument("ctc: there are other rows now");
  if (!ctc_ || !state.parallel())
    throw std::invalid_argument("this state was not opened for parallel decoding");
  std::vector<Row> rows;
  std::vector<int> outputs;
  std::vector<KeyValues> seen;
  std::vector<KeyValues*> caches;
  const LayerShape& shape = ctc_->stack.shape();
  seen.reserve(state.texts.size());
  for (int b = 0; b < state.size(); ++b) {
    const int count =
        state.texts[static_cast<std::size_t>(b)]->source->length * ctc_->spec.upsample;
    if (count > slots) throw std::invalid_argument("ctc: a text has more slots than there is room");
    for (int u = 0; u < count; ++u) {
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(b) * slots + u;
      const std::int64_t token = told == nullptr ? -1 : told[place];
      if (token >= spec_.words) throw std::invalid_argument("ctc: a told token is not a word");
      rows.push_back({b, token < 0 ? -1 : static_cast<int>(token), u, count});
      outputs.push_back(static_cast<int>(place));
    }
    seen.emplace_back(1, shape.heads, shape.head_width(), count, memory_);
    caches.push_back(&seen.back());
  }
  const int width = spec_.width;
  run(
      rows, state.size(), static_cast<int>(rows.size()),
      [&](Shared& shared, Own& own, int count) { prepare(shared, own, shape, count, slots); },
      [&](Pass& pass, int) {
        pass.texts = &caches;
        if (told != nullptr) tell(pass);
        spread_memory(pass, state);
        ctc_->stack.run_whole(pass);
        pass.own.operand.take(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width,
                              width);
        const Range mine = pass.worker.share(ctc_->head.panels());
        ctc_->head.multiply(kernel_, pass.own.operand, mine, logits + mine.begin * kPanel,
                            spec_.words, outputs.data() + (pass.rows - rows.data()));
      });
}

// Leaves W e(token) of every row that is told one in `delta`.
void Model::tell(Pass& pass) const {
  const int width = spec_.width;
  for (int r = 0; r < pass.count; ++r)
    look_up(tokens_, std::max(0, pass.rows[r].token), pass.own.stream.data() + area(r, width));
  pass.own.operand.take(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width, width);
  pass.multiply(ctc_->told, pass.shared.delta.data());
  pass.worker.wait();
}

// x_u = memory[u / n] + copies[u mod n] + what the slot is told + position
void Model::spread_memory(Pass& pass, const State& state) const {
  const int width = spec_.width, upsample = ctc_->spec.upsample;
  for (int r = 0; r < pass.count; ++r) {
    const Row& row = pass.rows[r];
    float* x = pass.own.stream.data() + area(r, width);
    const Source& source = *state.texts[static_cast<std::size_t>(row.text)]->source;
    std::copy_n(source.memory.data() + area(row.place / upsample, width), width, x);
    kernel_.rows->add(x, ctc_->copies.data() + area(row.place % upsample, width), width);
    if (row.token >= 0) kernel_.rows->add(x, pass.shared.delta.data() + area(r, width), width);
    kernel_.rows->add(x, state.sines->row(row.place), width);
  }
  pass.worker.wait();  // `delta` is written again before long
}

}  // namespace outrider
