// The encoder, and the keys and values that cross-attention reads of its output.
#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {
namespace {

// Tokens that a worker takes through the encoder at a time, in whole sequences: so many that weights
// are worth reading for them, so few that the caches keep what they leave behind.
constexpr std::size_t kRowsAtOnce = 64;

// How many of the first rows belong together: whole sequences, at least one, about `wanted` rows.
std::size_t whole_sequences(std::span<const Row> rows, std::size_t wanted) {
  std::size_t end = 0;
  for (std::size_t at = 1; at <= rows.size(); ++at) {
    if (at < rows.size() && rows[at].sequence == rows[at - 1].sequence) continue;
    if (end > 0 && at > wanted) break;
    end = at;
  }
  return end;
}

// Whether any sequence is to take in tokens, and so to read its source token by token.
bool is_decoded(const std::vector<int>& capacities) {
  return std::any_of(capacities.begin(), capacities.end(), [](int one) { return one > 0; });
}

}  // namespace

std::unique_ptr<State> Model::encode(const std::vector<std::vector<int>>& sources,
                                     const std::vector<int>& capacities, bool drafting,
                                     bool parallel, const std::vector<std::vector<int>>& words) {
  check_sources(sources, capacities, drafting, parallel);
  check_words(words, sources.size());
  std::unique_ptr<State> state = open_state(sources, capacities, drafting, parallel, words);
  if (spec_.encoder_layers > 0) run_encoder(sources, *state, is_decoded(capacities));
  return state;
}

void Model::check_sources(const std::vector<std::vector<int>>& sources,
                          const std::vector<int>& capacities, bool drafting, bool parallel) const {
  if (sources.empty()) throw std::invalid_argument("encode: there is no source");
  if (capacities.size() != sources.size())
    throw std::invalid_argument("encode: one capacity for each source");
  std::size_t longest = 0;
  for (const int capacity : capacities) {
    if (capacity < 0 || capacity > kMaxTokens)
      throw std::invalid_argument("encode: there can be no capacity of " +
                                  std::to_string(capacity));
    longest = std::max(longest, static_cast<std::size_t>(capacity));
  }
  if (drafting && !drafter_) throw std::invalid_argument("this model has no drafter");
  if (parallel && !ctc_) throw std::invalid_argument("this model has no CTC decoder");
  for (const std::vector<int>& source : sources) {
    if (spec_.encoder_layers > 0 && source.empty())
      throw std::invalid_argument("encode: a source is empty");
    if (spec_.encoder_layers == 0 && !source.empty())
      throw std::invalid_argument("a language model has no source");
    check_tokens(source);
    longest = std::max(longest, source.size());
  }
  const int limit = spec_.position == Position::learned ? spec_.max_positions : kMaxTokens;
  if (longest > static_cast<std::size_t>(limit))
    throw std::invalid_argument(std::to_string(longest) + " tokens are more than the " +
                                std::to_string(limit) + " positions this model has");
}

void Model::check_words(const std::vector<std::vector<int>>& words, std::size_t sources) const {
  if (words.empty()) return;
  if (spec_.encoder_layers == 0) throw std::invalid_argument("a language model has no source");
  if (words.size() != sources)
    throw std::invalid_argument("encode: words for each source, or for none");
  for (const std::vector<int>& listed : words) {
    check_tokens(listed);
    const auto wrong = [](int left, int right) { return left >= right; };
    if (listed.empty() ||
        std::adjacent_find(listed.begin(), listed.end(), wrong) != listed.end())
      throw std::invalid_argument("encode: words must be in order, each once, at least one");
  }
}

std::unique_ptr<State> Model::open_state(const std::vector<std::vector<int>>& sources,
                                         const std::vector<int>& capacities, bool drafting,
                                         bool parallel,
                                         const std::vector<std::vector<int>>& words) {
  const auto make_cache = [&](const LayerShape& shape, int layers, int positions) {
    const int heads = shape.recurrent ? shape.heads : shape.kv_heads;
    return KvCache(layers, heads, shape.head_width(), positions, pool_, !shape.recurrent);
  };
  auto state = std::make_unique<State>(drafting, parallel);
  int reach = 1;
  for (std::size_t b = 0; b < sources.size(); ++b) {
    const std::vector<int>& source = sources[b];
    const int capacity = capacities[b];
    auto sequence = std::make_unique<Sequence>();
    sequence->capacity = capacity;
    reach = std::max(reach, capacity);
    sequence->decoder = make_cache(decoder_.shape(), decoder_.layers(), capacity);
    if (drafting)
      sequence->drafter =
          make_cache(drafter_->stack().shape(), drafter_->stack().layers(), capacity);
    if (spec_.encoder_layers > 0) {
      const int length = static_cast<int>(source.size());
      auto read = std::make_shared<Source>();
      read->length = length;
      LayerShape shape = decoder_.shape();
      shape.kv_heads = shape.heads;  // cross-attention has a key for every head
      shape.recurrent = false;
      if (is_decoded(capacities)) read->decoder = make_cache(shape, decoder_.layers(), length);
      if (drafting)
        read->drafter = make_cache(drafter_->stack().shape(), drafter_->stack().layers(), length);
      if (!words.empty()) read->shortlist = std::make_unique<const Shortlist>(words[b], head_);
      if (parallel) read->encoder_output.resize(area(length, spec_.width));
      sequence->source = std::move(read);
      reach = std::max(reach, length * std::max(1, upsample()));
    }
    state->sequences.push_back(std::move(sequence));
  }
  state->owner = pool_;
  // A CTC decoder tells its slots by sines whatever the model does.
  if (parallel || spec_.position == Position::sinusoidal) state->sines = sines_.at_least(reach);
  if (spec_.position == Position::rotary) state->angles = angles_.at_least(reach);
  if (drafting && drafter_->stack().shape().rotary)
    state->drafter_angles = drafter_angles_.at_least(reach);
  state->bias = decoder_biases_.at_least(reach);
  return state;
}

void Model::run_encoder(const std::vector<std::vector<int>>& sources, State& state, bool decoded) {
  std::vector<Row> rows;
  std::vector<KvCache> uncached;  // one layer, used by all in turn
  std::vector<KvCache*> caches, decoder, drafter;
  int longest = 0;
  uncached.reserve(sources.size());
  for (int b = 0; b < state.size(); ++b) {
    const std::vector<int>& source = sources[static_cast<std::size_t>(b)];
    const int length = static_cast<int>(source.size());
    for (int position = 0; position < length; ++position)
      rows.push_back({b, source[static_cast<std::size_t>(position)], position, length});
    uncached.emplace_back(1, spec_.kv_heads, encoder_.shape().head_width(), length, pool_);
    caches.push_back(&uncached.back());
    // No one else holds these sources yet.
    auto& read = const_cast<Source&>(*state.sequences[static_cast<std::size_t>(b)]->source);
    decoder.push_back(&read.decoder);
    drafter.push_back(&read.drafter);
    longest = std::max(longest, length);
  }
  const int width = spec_.width;
  const std::shared_ptr<const OffsetBias> bias = encoder_biases_.at_least(longest);
  const auto encode_rows = [&](ForwardPass& pass) {
    pass.caches = &caches;
    pass.angles = state.angles.get();
    pass.bias = bias.get();
    embed(pass, spec_.shared_embeddings ? tokens_ : source_tokens_, source_position_table_,
          state.sines.get(), source_embedding_norm_);
    encoder_.run_uncached(pass);
    pass.own.operand.load(kernel_, spec_.precision, pass.own.stream.data(), pass.count, width,
                          width);
    if (decoded) decoder_.write_cross_kv(pass, decoder);
    if (state.drafting()) drafter_->stack().write_cross_kv(pass, drafter);
    if (!state.parallel() || pass.worker.index != 0) return;
    for (int r = 0; r < pass.count; ++r) {
      const Row& row = pass.rows[r];
      auto& read =
          const_cast<Source&>(*state.sequences[static_cast<std::size_t>(row.sequence)]->source);
      std::copy_n(pass.own.stream.data() + area(r, width), width,
                  read.encoder_output.data() + area(row.position, width));
    }
  };
  const std::size_t wanted = kRowsAtOnce * static_cast<std::size_t>(team_.threads());
  for (std::span<const Row> left = rows; !left.empty();) {
    const std::span<const Row> some = left.first(whole_sequences(left, wanted));
    left = left.subspan(some.size());
    run(
        some, state.size(), static_cast<int>(some.size()),  // a token sees all of its source
        [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
          reserve_buffers(shared, own, encoder_.shape(), count, longest);
        },
        encode_rows);
  }
}

}  // namespace outrider
