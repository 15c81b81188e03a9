// Whole sequences at once: the slots of the CTC decoder (see models/ctc.py for the equations).
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

void Model::ctc(State& state, const std::int64_t* known, int sequences, int slots, float* logits) {
  const State::ExclusiveUse use(state);
  check_state(state);
  if (sequences != state.size()) throw std::invalid_argument("ctc: there are other rows now");
  if (!ctc_ || !state.parallel())
    throw std::invalid_argument("this state was not opened for parallel decoding");
  std::vector<Row> rows;
  std::vector<int> outputs;
  std::vector<KvCache> uncached;  // one layer, used by all in turn
  std::vector<KvCache*> caches;
  const LayerShape& shape = ctc_->stack.shape();
  uncached.reserve(state.sequences.size());
  for (int b = 0; b < state.size(); ++b) {
    const int count =
        state.sequences[static_cast<std::size_t>(b)]->source->length * ctc_->spec.upsample;
    if (count > slots)
      throw std::invalid_argument("ctc: a sequence has more slots than there is room");
    for (int u = 0; u < count; ++u) {
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(b) * slots + u;
      const std::int64_t token = known == nullptr ? -1 : known[place];
      if (token >= spec_.words) throw std::invalid_argument("ctc: a known token is not a word");
      rows.push_back({b, token < 0 ? -1 : static_cast<int>(token), u, count});
      outputs.push_back(static_cast<int>(place));
    }
    uncached.emplace_back(1, shape.heads, shape.head_width(), count, pool_);
    caches.push_back(&uncached.back());
  }
  const int width = spec_.width;
  run(
      rows, state.size(), static_cast<int>(rows.size()),
      [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
        reserve_buffers(shared, own, shape, count, slots);
      },
      [&](ForwardPass& pass) {
        pass.caches = &caches;
        if (known != nullptr) project_known(pass);
        upsample_encoder_output(pass, state);
        ctc_->stack.run_uncached(pass);
        pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width,
                              width);
        const Range mine = pass.worker.share(ctc_->head.panels());
        ctc_->head.multiply(kernel_, pass.own.operand, mine, logits + mine.begin * kPanel,
                            spec_.words, outputs.data() + (pass.rows - rows.data()));
      });
}

// Leaves W e(token) in `sublayer_out`, for every row whose token is known.
void Model::project_known(ForwardPass& pass) const {
  const int width = spec_.width;
  for (int r = 0; r < pass.count; ++r)
    embed_token(tokens_, std::max(0, pass.rows[r].token), pass.own.stream.data() + area(r, width));
  pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width, width);
  pass.multiply(ctc_->known, pass.shared.sublayer_out.data());
  pass.worker.wait();  // `sublayer_out` is whole: `upsample_encoder_output` reads all its columns
}

// x_u = encoder_output[u / n] + copies[u mod n] + W e(known token) + position
void Model::upsample_encoder_output(ForwardPass& pass, const State& state) const {
  const int width = spec_.width, upsample = ctc_->spec.upsample;
  for (int r = 0; r < pass.count; ++r) {
    const Row& row = pass.rows[r];
    float* x = pass.own.stream.data() + area(r, width);
    const Source& source = *state.sequences[static_cast<std::size_t>(row.sequence)]->source;
    std::copy_n(source.encoder_output.data() + area(row.position / upsample, width), width, x);
    kernel_.rows->add(x, ctc_->copies.data() + area(row.position % upsample, width), width);
    if (row.token >= 0)
      kernel_.rows->add(x, pass.shared.sublayer_out.data() + area(r, width), width);
    kernel_.rows->add(x, state.sines->row(row.position), width);
  }
}

}  // namespace outrider
