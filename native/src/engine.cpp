#include "engine.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {
namespace {

// Rows per thread that the encoder computes at once, in whole sequences: enough to amortise reading
// the weights, few enough for the caches.
constexpr std::size_t kEncoderRows = 64;

TableCache<SineTable> sine_tables(std::vector<double> frequencies) {
  return TableCache<SineTable>([frequencies = std::move(frequencies)](int length) {
    return SineTable(frequencies, length);
  });
}

TableCache<OffsetBias> offset_biases(const Buckets& buckets, std::span<const float> table,
                                     int heads) {
  if (table.empty()) return {};
  return TableCache<OffsetBias>(
      [=](int length) { return OffsetBias(buckets, table, heads, length); });
}

// Divides rows among workers that compute independently: whole sequences, and about as many rows
// for each worker.
class RowSplit {
 public:
  RowSplit(std::span<const Row> rows, int sequences, int workers)
      : rows_(rows), sequences_(sequences), workers_(workers) {}

  // Whether there are enough rows and the parts are balanced.
  bool worthwhile() const {
    constexpr std::size_t kMinRows = 32;
    if (rows_.size() < kMinRows || sequences_ < workers_) return false;
    std::size_t most = 0;
    for (int index = 0; index < workers_; ++index) most = std::max(most, part(index).size());
    return 2 * most * static_cast<std::size_t>(workers_) <= 3 * rows_.size();
  }
  std::span<const Row> part(int index) const {
    const std::size_t begin = first_row(first_sequence(index));
    return rows_.subspan(begin, first_row(first_sequence(index + 1)) - begin);
  }

 private:
  int first_sequence(int index) const {
    if (index == 0) return 0;
    if (index == workers_) return sequences_;
    return rows_[rows_.size() * static_cast<std::size_t>(index) /
                 static_cast<std::size_t>(workers_)]
        .sequence;
  }
  std::size_t first_row(int sequence) const {
    const auto before = [](const Row& row, int wanted) { return row.sequence < wanted; };
    const auto first = std::lower_bound(rows_.begin(), rows_.end(), sequence, before);
    return static_cast<std::size_t>(first - rows_.begin());
  }

  std::span<const Row> rows_;
  int sequences_, workers_;
};

// The number of leading rows that are whole sequences, at least one, and about `wanted` rows.
std::size_t whole_sequences(std::span<const Row> rows, std::size_t wanted) {
  std::size_t end = 0;
  for (std::size_t at = 1; at <= rows.size(); ++at) {
    if (at < rows.size() && rows[at].sequence == rows[at - 1].sequence) continue;
    if (end > 0 && at > wanted) break;
    end = at;
  }
  return end;
}

void check_sources(const Model& model, const TokenRows& sources,
                   const std::vector<int>& capacities) {
  const ModelSpec& spec = model.spec;
  if (sources.empty()) throw std::invalid_argument("encode: no sources");
  if (capacities.size() != sources.size())
    throw std::invalid_argument("encode: expected one capacity for each source");
  std::size_t longest = 0;
  for (const int capacity : capacities) {
    if (capacity < 0 || capacity > kMaxTokens)
      throw std::invalid_argument("encode: capacity " + std::to_string(capacity) +
                                  " is out of range");
    longest = std::max(longest, static_cast<std::size_t>(capacity));
  }
  for (const std::vector<int>& source : sources) {
    if (spec.has_encoder() && source.empty())
      throw std::invalid_argument("encode: a source is empty");
    if (!spec.has_encoder() && !source.empty())
      throw std::invalid_argument("a language model has no source");
    model.check_tokens(source);
    longest = std::max(longest, source.size());
  }
  const int limit = spec.position == Position::learned ? spec.max_positions : kMaxTokens;
  if (longest > static_cast<std::size_t>(limit))
    throw std::invalid_argument(std::to_string(longest) + " tokens exceed the " +
                                std::to_string(limit) + " positions of this model");
}

void check_shortlists(const Model& model, const TokenRows& shortlists, std::size_t sources) {
  if (shortlists.empty()) return;
  if (!model.spec.has_encoder()) throw std::invalid_argument("a language model has no source");
  if (shortlists.size() != sources)
    throw std::invalid_argument("encode: expected one shortlist for each source");
  for (const std::vector<int>& listed : shortlists) {
    model.check_tokens(listed);
    const auto wrong = [](int left, int right) { return left >= right; };
    if (listed.empty() || std::adjacent_find(listed.begin(), listed.end(), wrong) != listed.end())
      throw std::invalid_argument("encode: a shortlist must be ascending and not empty");
  }
}

}  // namespace

Engine::Engine(Model model, int threads)
    : model_(std::move(model)),
      sines_(sine_tables(sinusoidal_frequencies(model_.spec.width))),
      rotary_(sine_tables(model_.spec.frequencies)),
      encoder_bias_(
          offset_biases(model_.spec.encoder_buckets, model_.source_input.bias, model_.spec.heads)),
      decoder_bias_(
          offset_biases(model_.spec.decoder_buckets, model_.input.bias, model_.spec.heads)),
      team_(threads) {
  if (model_.drafter)
    drafter_rotary_ =
        sine_tables(sinusoidal_frequencies(model_.drafter->stack().shape().head_width));
}

void Engine::check_state(const State& state) const {
  if (state.owner != pool_) throw std::invalid_argument("this is a state of another model");
}

std::unique_ptr<Engine::Scratch> Engine::acquire_scratch() {
  {
    const std::lock_guard<std::mutex> lock(fork_safe_mutex());
    if (!idle_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  auto scratch = std::make_unique<Scratch>();
  scratch->shared.resize(static_cast<std::size_t>(team_.threads()));
  scratch->own.resize(static_cast<std::size_t>(team_.threads()));
  return scratch;
}

void Engine::release_scratch(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex());
  idle_.push_back(std::move(scratch));
}

void Engine::run(std::span<const Row> rows, int sequences, int max_rows, const Prepare& prepare,
                 const Work& work) {
  std::unique_ptr<Scratch> scratch = acquire_scratch();
  const std::size_t step = std::min(rows.size(), static_cast<std::size_t>(max_rows));
  for (std::size_t worker = 0; worker < scratch->own.size(); ++worker)
    prepare(scratch->shared[worker], scratch->own[worker], static_cast<int>(step));
  for (std::size_t begin = 0; begin < rows.size(); begin += step) {
    const std::span<const Row> some = rows.subspan(begin, std::min(step, rows.size() - begin));
    const RowSplit split(some, sequences, team_.threads());
    const bool independent = split.worthwhile();
    team_.run([&](const Worker& worker) {
      const auto index = static_cast<std::size_t>(worker.index);
      const bool alone = worker.count > 1 && independent;
      const std::span<const Row> mine = alone ? split.part(worker.index) : some;
      if (mine.empty()) return;
      ForwardPass pass{model_.kernel,
                       alone ? Worker{} : worker,
                       mine.data(),
                       static_cast<int>(mine.size()),
                       scratch->shared[alone ? index : 0],
                       scratch->own[index]};
      work(pass);
    });
  }
  release_scratch(std::move(scratch));
}

std::unique_ptr<State> Engine::encode(const TokenRows& sources, const std::vector<int>& capacities,
                                      bool drafting, bool parallel, const TokenRows& shortlists) {
  check_sources(model_, sources, capacities);
  check_shortlists(model_, shortlists, sources.size());
  if (drafting && !model_.drafter) throw std::invalid_argument("this model has no drafter");
  if (parallel && !model_.ctc) throw std::invalid_argument("this model has no CTC decoder");
  // Cross-attention is needed unless no sequence has capacity for tokens.
  const bool decoded =
      std::any_of(capacities.begin(), capacities.end(), [](int capacity) { return capacity > 0; });
  std::vector<std::shared_ptr<Source>> opened(sources.size());
  for (std::size_t b = 0; b < sources.size() && model_.spec.has_encoder(); ++b) {
    opened[b] = open_source(static_cast<int>(sources[b].size()), decoded, drafting, parallel);
    if (!shortlists.empty())
      opened[b]->shortlist = std::make_unique<const Shortlist>(shortlists[b], model_.head);
  }
  std::unique_ptr<State> state = open_state(opened, capacities, drafting, parallel);
  if (model_.spec.has_encoder()) run_encoder(sources, opened, *state, decoded);
  return state;
}

std::shared_ptr<Source> Engine::open_source(int length, bool decoded, bool drafting,
                                            bool parallel) const {
  const auto make_cache = [&](const Stack& stack) {
    const LayerShape& shape = stack.shape();  // cross-attention has a key for every head
    return KvCache(stack.layers(), shape.heads, shape.head_width, length, pool_);
  };
  auto source = std::make_shared<Source>();
  source->length = length;
  if (decoded) source->decoder = make_cache(model_.decoder);
  if (drafting) source->drafter = make_cache(model_.drafter->stack());
  if (parallel) source->encoder_output.resize(area(length, model_.spec.width));
  return source;
}

std::unique_ptr<State> Engine::open_state(const std::vector<std::shared_ptr<Source>>& sources,
                                          const std::vector<int>& capacities, bool drafting,
                                          bool parallel) {
  const auto make_cache = [&](const Stack& stack, int capacity) {
    const LayerShape& shape = stack.shape();
    const int heads = shape.recurrent ? shape.heads : shape.kv_heads;
    return KvCache(stack.layers(), heads, shape.head_width, capacity, pool_, !shape.recurrent);
  };
  auto state = std::make_unique<State>(drafting, parallel);
  int positions = 1;
  for (std::size_t b = 0; b < sources.size(); ++b) {
    auto sequence = std::make_unique<Sequence>();
    sequence->capacity = capacities[b];
    sequence->decoder = make_cache(model_.decoder, capacities[b]);
    if (drafting) sequence->drafter = make_cache(model_.drafter->stack(), capacities[b]);
    positions = std::max(positions, capacities[b]);
    if (sources[b])
      positions = std::max(positions, sources[b]->length * std::max(1, model_.upsample()));
    sequence->source = sources[b];
    state->sequences.push_back(std::move(sequence));
  }
  state->owner = pool_;
  // The slots of a CTC decoder always have sinusoidal positions.
  const Position position = model_.spec.position;
  if (parallel || position == Position::sinusoidal) state->sines = sines_.at_least(positions);
  if (position == Position::rotary) state->rotary = rotary_.at_least(positions);
  if (drafting && model_.drafter->stack().shape().rotary)
    state->drafter_rotary = drafter_rotary_.at_least(positions);
  state->bias = decoder_bias_.at_least(positions);
  return state;
}

void Engine::run_encoder(const TokenRows& tokens,
                         const std::vector<std::shared_ptr<Source>>& sources, const State& state,
                         bool decoded) {
  std::vector<Row> rows;
  std::vector<KvCache> single_layer;  // used by all layers in turn
  std::vector<KvCache*> caches, decoder, drafter;
  int longest = 0;
  single_layer.reserve(sources.size());
  for (std::size_t b = 0; b < sources.size(); ++b) {
    const int length = sources[b]->length;
    for (int position = 0; position < length; ++position)
      rows.push_back(
          {static_cast<int>(b), tokens[b][static_cast<std::size_t>(position)], position, length});
    single_layer.emplace_back(1, model_.spec.kv_heads, model_.spec.head_width, length, pool_);
    caches.push_back(&single_layer.back());
    decoder.push_back(&sources[b]->decoder);
    drafter.push_back(&sources[b]->drafter);
    longest = std::max(longest, length);
  }
  const int width = model_.spec.width;
  const std::shared_ptr<const OffsetBias> bias = encoder_bias_.at_least(longest);
  const Work encode_rows = [&](ForwardPass& pass) {
    pass.caches = &caches;
    pass.rotary = state.rotary.get();
    pass.bias = bias.get();
    model_.embed(pass, model_.source_input, state.sines.get());
    model_.encoder.run_uncached(pass);
    pass.own.operand.load(model_.kernel, model_.spec.precision, pass.own.stream.data(), pass.count,
                          width, width);
    if (decoded) model_.decoder.write_cross_kv(pass, decoder);
    if (state.drafting()) model_.drafter->stack().write_cross_kv(pass, drafter);
    if (!state.parallel() || pass.worker.index != 0) return;
    for (int r = 0; r < pass.count; ++r) {
      Source& source = *sources[static_cast<std::size_t>(pass.rows[r].sequence)];
      std::copy_n(pass.own.stream.data() + area(r, width), width,
                  source.encoder_output.data() + area(pass.rows[r].position, width));
    }
  };
  const Prepare reserve = [&](SharedBuffers& shared, WorkerBuffers& own, int count) {
    reserve_buffers(shared, own, model_.encoder.shape(), count, longest);
  };
  const std::size_t wanted = kEncoderRows * static_cast<std::size_t>(team_.threads());
  for (std::span<const Row> left = rows; !left.empty();) {
    const std::span<const Row> some = left.first(whole_sequences(left, wanted));
    left = left.subspan(some.size());
    run(some, state.size(), static_cast<int>(some.size()), reserve, encode_rows);
  }
}

}  // namespace outrider
