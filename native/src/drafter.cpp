#include "drafter.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

// Inverts the cumulative distribution. 1 - u is in (0, 1], so the result has probability above 0.
int sample(const float* scores, int count, float temperature, double uniform) {
  const double most = *std::max_element(scores, scores + count);
  const auto mass = [&](int c) {
    return std::exp((static_cast<double>(scores[c]) - most) / temperature);
  };
  double total = 0.0, below = 0.0;
  for (int c = 0; c < count; ++c) total += mass(c);
  const double level = (1.0 - uniform) * total;
  for (int c = 0; c + 1 < count; ++c)
    if (!((below += mass(c)) < level)) return c;
  return count - 1;
}

}  // namespace

Drafter::Drafter(PackedWeights& weights, const DrafterSpec& spec, const LayerShape& target,
                 int vocab_size)
    : spec_(spec), width_(target.width), precision_(target.precision) {
  stack_ = Stack(weights, "drafter", spec.layers, spec.shape(target));
  const int tapped = tapped_width(), rank = spec.rank;
  const int listed = spec.shortlist.empty() ? vocab_size : static_cast<int>(spec.shortlist.size());
  for (std::size_t tap = 0; tap < spec.taps.size(); ++tap)
    state_norms_.emplace_back(weights, "drafter.state_norms." + std::to_string(tap), width_);
  for (int layer = 0; layer < spec.layers; ++layer)
    inject_.emplace_back(weights, "drafter.inject." + std::to_string(layer), 2 * width_, tapped,
                         precision_);
  from_last_ = Matrix(weights, "drafter.from_last", width_, tapped, precision_);
  norm_ = Norm(weights, "drafter.norm", width_);
  mask_ = weights.floats("drafter.mask", {width_});
  slots_ = weights.floats("drafter.slot.weight", {spec.block, width_});
  confidence_ = weights.floats("drafter.confidence.weight", {1, width_ + rank});
  confidence_bias_ = weights.floats("drafter.confidence.bias", {1})[0];
  head_ = Matrix(weights, "drafter.head", listed, width_, precision_);
  if (rank == 0) return;
  from_slot_ = Matrix(weights, "drafter.from_slot", rank, width_, precision_);
  out_ = weights.floats("drafter.out", {listed, rank});
  token_ = weights.floats("drafter.token", {vocab_size, rank});
  from_state_ = Matrix(weights, "drafter.from_state", rank, rank, precision_, false);
}

int Drafter::candidates() const { return std::min(spec_.candidates, head_.columns()); }

int Drafter::token_of(int column) const {
  return spec_.shortlist.empty() ? column : spec_.shortlist[static_cast<std::size_t>(column)];
}

const float* Drafter::slot(int index) const {
  return slots_.data() + area(std::min(index, spec_.block - 1), width_);
}

void Drafter::tap(ForwardPass& pass, int layer) const {
  for (std::size_t tap = 0; tap < spec_.taps.size(); ++tap) {
    if (spec_.taps[tap] != layer) continue;
    for (int r = 0; r < pass.count; ++r)
      state_norms_[tap].run(pass.kernel, pass.own.stream.data() + area(r, width_),
                            pass.own.tapped_states.data() + area(r, tapped_width()) + tap * width_);
  }
}

void Drafter::reserve_states(State& state, const std::vector<int>& counts) const {
  const int tapped = tapped_width();
  for (std::size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] == 0) continue;
    Sequence& sequence = *state.sequences[b];
    const float* last = sequence.last_state(tapped);
    std::vector<float> earlier;
    if (last != nullptr) earlier.assign(last, last + tapped);
    sequence.state_before_recent = std::move(earlier);
    sequence.recent_start = sequence.length;
    sequence.recent_states.resize(area(counts[b], tapped));
  }
}

void Drafter::write_injected_kv(ForwardPass& pass, State& state,
                                const std::vector<KvCache*>& caches) const {
  const int tapped = tapped_width(), heads = stack_.shape().heads, width = width_ / heads;
  pass.own.operand.load(pass.kernel, precision_, pass.own.tapped_states.data(), pass.count, tapped,
                        tapped);
  for (int layer = 0; layer < stack_.layers(); ++layer) {
    const Matrix& inject = inject_[static_cast<std::size_t>(layer)];
    const Range mine = pass.multiply_parts(inject, heads, {{0, width}, {width_, width}},
                                           pass.shared.projected.data());
    for (int r = 0; r < pass.count; ++r) {
      const Row& row = pass.rows[r];
      float* kv = pass.shared.projected.data() + area(r, 2 * width_);
      for (int head = mine.begin; head < mine.end; ++head) {
        float* key = kv + head * width;
        if (stack_.shape().rotary)
          pass.kernel.rows->apply_rotary(key, width, pass.rotary->sines(row.position),
                                         pass.rotary->cosines(row.position));
        caches[static_cast<std::size_t>(row.sequence)]->write(layer, head, row.position, key,
                                                              kv + width_ + head * width);
      }
    }
    pass.worker.wait();  // `projected` is free for the next layer's keys and values
  }
  if (pass.worker.index != 0) return;
  for (int r = 0; r < pass.count; ++r) {
    Sequence& sequence = *state.sequences[static_cast<std::size_t>(pass.rows[r].sequence)];
    const int index = pass.rows[r].position - sequence.recent_start;
    std::copy_n(pass.own.tapped_states.data() + area(r, tapped), tapped,
                sequence.recent_states.data() + area(index, tapped));
  }
}

void Drafter::add_last_state(ForwardPass& pass, const State& state, const DraftPlan& plan) const {
  const int tapped = tapped_width();
  const Range blocks = plan.blocks_of(pass);
  for (int b = blocks.begin; b < blocks.end; ++b) {
    const auto sequence = static_cast<std::size_t>(plan.block(b).sequence);
    const float* last = state.sequences[sequence]->last_state(tapped);
    float* to = pass.own.tapped_states.data() + area(b - blocks.begin, tapped);
    if (last == nullptr)
      std::fill_n(to, tapped, 0.0f);
    else
      std::copy_n(last, tapped, to);
  }
  pass.own.operand.load(pass.kernel, precision_, pass.own.tapped_states.data(),
                        blocks.end - blocks.begin, tapped, tapped);
  pass.multiply(from_last_, pass.shared.sublayer_out.data());
  pass.worker.wait();  // `sublayer_out` is complete, and free from barrier B of the first layer
  const int* block_of = plan.block_of.data() + (pass.rows - plan.rows.data());
  for (int r = 0; r < pass.count; ++r)
    pass.kernel.rows->add(
        pass.own.stream.data() + area(r, width_),
        pass.shared.sublayer_out.data() + area(block_of[r] - blocks.begin, width_), width_);
}

void Drafter::choose_tokens(ForwardPass& pass, const DraftPlan& plan, Draft& draft,
                            const DraftCandidates& out) const {
  // A pre-norm stack ends with its own norm.
  for (int r = 0; r < pass.count && !spec_.pre_norm; ++r) {
    float* x = pass.own.stream.data() + area(r, width_);
    norm_.run(pass.kernel, x, x);
  }
  find_candidates(pass);
  const Range blocks = plan.blocks_of(pass);
  const Range mine = pass.worker.share(blocks.end - blocks.begin);
  for (int b = mine.begin; b < mine.end; ++b) {
    const DraftBlock& block = plan.block(blocks.begin + b);
    const auto sequence = static_cast<std::size_t>(block.sequence);
    DraftCandidates part = out;
    if (out.ids != nullptr) {
      const std::size_t at = area(block.sequence * out.slots, candidates());
      part.ids += at;
      part.probabilities += at;
    }
    choose_block(pass, block, block.first - static_cast<int>(pass.rows - plan.rows.data()),
                 plan.temperature, draft.tokens[sequence].data(), draft.confidence[sequence].data(),
                 part);
  }
}

void Drafter::find_candidates(ForwardPass& pass) const {
  const int step = rows_at_once(), columns = head_.columns(), count = candidates();
  for (int begin = 0; begin < pass.count; begin += step) {
    const int rows = std::min(step, pass.count - begin);
    pass.own.operand.load(pass.kernel, precision_, pass.own.stream.data() + area(begin, width_),
                          rows, width_, width_);
    pass.multiply(head_, pass.shared.draft_logits.data());
    if (spec_.rank > 0)
      pass.multiply(from_slot_, pass.shared.context.data() + area(begin, spec_.rank));
    pass.worker.wait();  // `draft_logits` and `context` are complete: workers share the rows
    const Range mine = pass.worker.share(rows);
    for (int r = mine.begin; r < mine.end; ++r) {
      const std::size_t at = area(begin + r, count);
      pass.kernel.rows->top_k(pass.shared.draft_logits.data() + area(r, columns), columns, count,
                              pass.shared.candidates.data() + at,
                              pass.shared.candidate_scores.data() + at);
    }
    pass.worker.wait();  // `candidates` is complete; `draft_logits` is free for the next rows
  }
}

void Drafter::choose_block(ForwardPass& pass, const DraftBlock& block, int first, float temperature,
                           int* tokens, float* confidence, const DraftCandidates& out) const {
  const RowFunctions& rows = *pass.kernel.rows;
  const int count = candidates(), rank = spec_.rank;
  // Recurrent states of this and the previous slot, the update, and the candidates' scores.
  float* states = pass.own.attention_scores.data();
  float* update = states + 2 * rank;
  float* scores = update + rank;
  int previous = block.last;
  for (int i = 0; i < block.count; ++i) {
    const int row = first + i;
    const float* hidden = pass.own.stream.data() + area(row, width_);
    const int* columns = pass.shared.candidates.data() + area(row, count);
    std::copy_n(pass.shared.candidate_scores.data() + area(row, count), count, scores);
    float* state = states + (i % 2) * rank;
    if (rank > 0) {
      std::copy_n(pass.shared.context.data() + area(row, rank), rank, state);
      rows.add(state, token_.data() + area(previous, rank), rank);
      if (i > 0) {
        pass.own.operand.load(pass.kernel, precision_, states + ((i + 1) % 2) * rank, 1, rank,
                              rank);
        from_state_.multiply(pass.kernel, pass.own.operand, {0, from_state_.panels()}, update,
                             rank);
        rows.add(state, update, rank);
      }
      rows.tanh(state, rank);
      for (int c = 0; c < count; ++c)
        scores[c] += rows.dot(out_.data() + area(columns[c], rank), state, rank);
    }
    int pick = 0;
    if (block.uniform != nullptr)
      pick = sample(scores, count, temperature, block.uniform[i]);
    else
      for (int c = 1; c < count; ++c)
        if (scores[c] > scores[pick]) pick = c;
    const bool is_known = block.known != nullptr && block.known[i] >= 0;
    previous = tokens[i] = is_known ? block.known[i] : token_of(columns[pick]);
    float confidence_logit = rows.dot(confidence_.data(), hidden, width_) + confidence_bias_;
    if (rank > 0) confidence_logit += rows.dot(confidence_.data() + width_, state, rank);
    confidence[i] = 1.0f / (1.0f + std::exp(-confidence_logit));
    if (out.ids == nullptr) continue;
    for (int c = 0; c < count; ++c) out.ids[i * count + c] = token_of(columns[c]);
    float* probabilities = out.probabilities + static_cast<std::ptrdiff_t>(i) * count;
    std::copy_n(scores, count, probabilities);
    rows.softmax(probabilities, count, temperature);
  }
}

void Drafter::reserve_inputs(SharedBuffers& shared, WorkerBuffers& own, int rows) const {
  const int tapped = tapped_width();
  shared.projected.reserve(area(rows, 2 * width_));
  own.tapped_states.reserve(area(rows, tapped));
  own.operand.reserve(precision_, rows, tapped);
}

void Drafter::reserve_choice(SharedBuffers& shared, WorkerBuffers& own, int rows) const {
  shared.draft_logits.reserve(area(std::min(rows, rows_at_once()), head_.columns()));
  shared.context.reserve(area(rows, std::max(width_, spec_.rank)));
  shared.candidates.reserve(area(rows, candidates()));
  shared.candidate_scores.reserve(area(rows, candidates()));
  own.attention_scores.reserve(static_cast<std::size_t>(3 * spec_.rank + candidates()));
  own.operand.reserve(precision_, rows, std::max(width_, spec_.rank));
}

int Drafter::rows_at_once() const {
  constexpr int kScores = 1 << 22;  // floats, 16 MiB
  return std::max(16, kScores / head_.columns());
}

}  // namespace outrider
