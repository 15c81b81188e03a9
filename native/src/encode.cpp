// Reading sources: the encoder, and what the cross-attention of every decoder layer asks of it.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

std::unique_ptr<State> Model::encode(const std::vector<std::vector<int>>& sources, int capacity,
                                     bool drafting, bool parallel) {
  check_sources(sources, capacity, drafting, parallel);
  std::unique_ptr<State> state = open(sources, capacity, drafting, parallel);
  if (spec_.encoder_layers > 0) read(sources, *state);
  return state;
}

void Model::check_sources(const std::vector<std::vector<int>>& sources, int capacity, bool drafting,
                          bool parallel) const {
  if (sources.empty()) throw std::invalid_argument("encode: there is no source");
  if (capacity < 0 || capacity > kLongest)
    throw std::invalid_argument("encode: there can be no capacity of " + std::to_string(capacity));
  if (drafting && !drafter_) throw std::invalid_argument("this model has no drafter");
  if (parallel && !ctc_) throw std::invalid_argument("this model has no CTC decoder");
  std::size_t longest = static_cast<std::size_t>(capacity);
  for (const std::vector<int>& source : sources) {
    if (spec_.encoder_layers > 0 && source.empty())
      throw std::invalid_argument("encode: a source is empty");
    if (spec_.encoder_layers == 0 && !source.empty())
      throw std::invalid_argument("a language model has no source");
    check_tokens(source);
    longest = std::max(longest, source.size());
  }
  const int limit = spec_.position == Position::learned ? spec_.max_positions : kLongest;
  if (longest > static_cast<std::size_t>(limit))
    throw std::invalid_argument(std::to_string(longest) + " tokens are more than the " +
                                std::to_string(limit) + " positions this model has");
}

std::unique_ptr<State> Model::open(const std::vector<std::vector<int>>& sources, int capacity,
                                   bool drafting, bool parallel) {
  const auto remember = [&](const LayerShape& shape, int layers, int places) {
    return KeyValues(layers, shape.kv_heads, shape.head_width(), places, memory_);
  };
  auto state = std::make_unique<State>(capacity, drafting, parallel);
  int reach = std::max(capacity, 1);
  for (const std::vector<int>& source : sources) {
    auto text = std::make_unique<Text>();
    text->decoder = remember(decoder_.shape(), decoder_.layers(), capacity);
    if (drafting)
      text->drafter = remember(drafter_->stack().shape(), drafter_->stack().layers(), capacity);
    if (spec_.encoder_layers > 0) {
      const int length = static_cast<int>(source.size());
      auto read = std::make_shared<Source>();
      read->length = length;
      LayerShape shape = decoder_.shape();
      shape.kv_heads = shape.heads;  // cross-attention has a key for every head
      if (capacity > 0) read->decoder = remember(shape, decoder_.layers(), length);
      if (drafting)
        read->drafter = remember(drafter_->stack().shape(), drafter_->stack().layers(), length);
      if (parallel) read->memory.resize(area(length, spec_.width));
      text->source = std::move(read);
      reach = std::max(reach, length * std::max(1, upsample()));
    }
    state->texts.push_back(std::move(text));
  }
  state->owner = memory_;
  // A CTC decoder tells its slots by sines whatever the model does.
  if (parallel || spec_.position == Position::sinusoidal) state->sines = sines_.upto(reach);
  if (spec_.position == Position::rotary) {
    state->angles = angles_.upto(reach);
    if (drafting) state->drafter_angles = drafter_angles_.upto(reach);
  }
  return state;
}

void Model::read(const std::vector<std::vector<int>>& sources, State& state) {
  std::vector<Row> rows;
  std::vector<KeyValues> seen;
  std::vector<KeyValues*> texts, decoder, drafter;
  int longest = 0;
  seen.reserve(sources.size());
  for (int b = 0; b < state.size(); ++b) {
    const std::vector<int>& source = sources[static_cast<std::size_t>(b)];
    const int length = static_cast<int>(source.size());
    for (int place = 0; place < length; ++place)
      rows.push_back({b, source[static_cast<std::size_t>(place)], place, length});
    seen.emplace_back(1, spec_.kv_heads, spec_.width / spec_.heads, length, memory_);
    texts.push_back(&seen.back());
    // No one else holds these sources yet.
    auto& read = const_cast<Source&>(*state.texts[static_cast<std::size_t>(b)]->source);
    decoder.push_back(&read.decoder);
    drafter.push_back(&read.drafter);
    longest = std::max(longest, length);
  }
  const int width = spec_.width;
  run(
      rows, state.size(), static_cast<int>(rows.size()),  // a token sees all of its source
      [&](Shared& shared, Own& own, int count) {
        prepare(shared, own, encoder_.shape(), count, longest);
      },
      [&](Pass& pass, int) {
        pass.texts = &texts;
        pass.angles = state.angles.get();
        embed(pass, spec_.shared_embeddings ? tokens_ : source_tokens_, source_places_,
              state.sines.get());
        encoder_.run_whole(pass);
        pass.own.operand.take(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width,
                              width);
        if (state.capacity() > 0) decoder_.read_sources(pass, decoder);
        if (state.drafting()) drafter_->stack().read_sources(pass, drafter);
        if (!state.parallel() || pass.worker.index != 0) return;
        for (int r = 0; r < pass.count; ++r) {
          const Row& row = pass.rows[r];
          auto& read =
              const_cast<Source&>(*state.texts[static_cast<std::size_t>(row.text)]->source);
          std::copy_n(pass.own.stream.data() + area(r, width), width,
                      read.memory.data() + area(row.place, width));
        }
      });
}

}  // namespace outrider
