// The Python module: shapes, ids and lengths are checked here or in the core before any work.
#include "decode.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

namespace nb = nanobind;
using namespace nb::literals;

namespace outrider {
namespace {

using Numbers = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<nb::numpy, float>;

// --- Weights ---

// numpy has no bfloat16: uint16 contains its bits.
NumberType to_number_type(const std::string& name, const nb::dlpack::dtype& type) {
  if (type == nb::dtype<float>()) return NumberType::float32;
  if (type == nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1})
    return NumberType::float16;
  if (type == nb::dtype<std::uint16_t>()) return NumberType::bfloat16;
  throw std::invalid_argument("'" + name + "' is not of float32, float16 or bfloat16 (as uint16)");
}

Numbers to_numbers(const std::string& name, nb::handle value) {
  Numbers array;
  if (!nb::try_cast<Numbers>(value, array, false))  // without an implicit copy
    throw std::invalid_argument("'" + name + "' is not a contiguous array");
  return array;
}

// An array, or a pair of int8 and a float32 scale for each row.
Array read_array(const std::string& name, nb::handle value, std::vector<Numbers>& owners) {
  const bool scaled = nb::isinstance<nb::tuple>(value) && nb::len(value) == 2;
  const Numbers numbers = to_numbers(name, scaled ? nb::handle(value[0]) : value);
  Array array{name, numbers.data(), NumberType::int8, {}};
  for (std::size_t i = 0; i < numbers.ndim(); ++i) {
    if (numbers.shape(i) > static_cast<std::size_t>(std::numeric_limits<int>::max()))
      throw std::invalid_argument("'" + name + "' is too large");
    array.shape.push_back(static_cast<int>(numbers.shape(i)));
  }
  if (scaled) {
    const Numbers scales = to_numbers(name, value[1]);
    if (numbers.dtype() != nb::dtype<std::int8_t>() || scales.dtype() != nb::dtype<float>() ||
        numbers.ndim() != 2 || scales.ndim() != 1 || scales.shape(0) != numbers.shape(0))
      throw std::invalid_argument("'" + name +
                                  "' is not rows of int8 and a float32 scale for each");
    array.scales.resize(scales.shape(0));
    std::memcpy(array.scales.data(), scales.data(), scales.nbytes());
  } else {
    array.type = to_number_type(name, numbers.dtype());
  }
  owners.push_back(numbers);
  return array;
}

Weights read_weights(const nb::dict& arrays, std::vector<Numbers>& owners) {
  Weights weights;
  for (const auto& [key, value] : arrays)
    weights.insert(read_array(nb::cast<std::string>(key), value, owners));
  return weights;
}

// A mapped file; engines built from it keep it mapped.
struct PackedFile {
  std::shared_ptr<PackedWeights> weights;
};

// --- Specs ---

template <typename T>
T choose(const char* key, const std::string& name,
         std::initializer_list<std::pair<const char*, T>> values) {
  for (const auto& [known, value] : values)
    if (name == known) return value;
  throw std::invalid_argument(std::string("unsupported ") + key + " '" + name + "'");
}

// A value of a spec; errors name the key.
template <typename T>
T get(const nb::dict& values, const char* key) {
  T value{};
  if (!values.contains(key)) throw std::invalid_argument(std::string(key) + " is missing");
  if (!nb::try_cast<T>(values[key], value))
    throw std::invalid_argument(std::string(key) + " is of another type or out of range");
  return value;
}

Activation get_activation(const nb::dict& values) {
  return choose<Activation>("activation", get<std::string>(values, "activation"),
                            {{"relu", Activation::relu},
                             {"gelu", Activation::gelu},
                             {"gelu_tanh", Activation::gelu_tanh},
                             {"silu", Activation::silu}});
}

Position get_position(const nb::dict& values) {
  return choose<Position>("position", get<std::string>(values, "position"),
                          {{"none", Position::none},
                           {"sinusoidal", Position::sinusoidal},
                           {"learned", Position::learned},
                           {"rotary", Position::rotary},
                           {"bucketed", Position::bucketed}});
}

int get_positive(const nb::dict& values, const char* key) {
  const int value = get<int>(values, key);
  if (value < 1 || value > 1 << 24)
    throw std::invalid_argument(std::string(key) + " is " + std::to_string(value));
  return value;
}

Buckets get_buckets(const nb::dict& values, const char* key, bool two_sided) {
  constexpr std::size_t kMaxEdges = 1 << 16;
  const Buckets buckets{get<std::vector<int>>(values, key), two_sided};
  if (buckets.edges.size() > kMaxEdges)
    throw std::invalid_argument(std::string(key) + " are too many");
  for (std::size_t n = 0; n < buckets.edges.size(); ++n)
    if (buckets.edges[n] < (n == 0 ? 1 : buckets.edges[n - 1]))
      throw std::invalid_argument(std::string(key) + " are not ascending");
  return buckets;
}

void check_frequencies(const ModelSpec& spec) {
  const std::size_t pairs = spec.position == Position::rotary ? spec.head_width / 2 : 0;
  if (spec.frequencies.size() != pairs || (pairs > 0 && spec.head_width % 2 != 0))
    throw std::invalid_argument("frequencies must have one number for each pair of a head");
  for (const double frequency : spec.frequencies)
    if (!std::isfinite(frequency)) throw std::invalid_argument("a frequency is not finite");
}

ModelSpec read_model(const nb::dict& values) {
  ModelSpec spec;
  spec.vocab_size = get_positive(values, "vocab_size");
  spec.width = get_positive(values, "width");
  spec.heads = get_positive(values, "heads");
  spec.kv_heads = get_positive(values, "kv_heads");
  spec.head_width = get_positive(values, "head_width");
  spec.inner = get_positive(values, "inner");
  spec.encoder_layers = get<int>(values, "encoder_layers");
  if (spec.encoder_layers < 0) throw std::invalid_argument("encoder_layers is negative");
  spec.decoder_layers = get_positive(values, "decoder_layers");
  spec.max_positions = get_positive(values, "max_positions");
  spec.embedding_scale = get<float>(values, "embedding_scale");
  if (!std::isfinite(spec.embedding_scale))
    throw std::invalid_argument("embedding_scale is not finite");
  spec.pre_norm = get<bool>(values, "pre_norm");
  spec.gated = get<bool>(values, "gated");
  spec.shared_embeddings = get<bool>(values, "shared_embeddings");
  spec.recurrent = choose<bool>("mixer", get<std::string>(values, "mixer"),
                                {{"attention", false}, {"ssru", true}});
  spec.position = get_position(values);
  spec.activation = get_activation(values);
  spec.precision = choose<Precision>("dtype", get<std::string>(values, "dtype"),
                                     {{"int8", Precision::int8}, {"float32", Precision::float32}});
  spec.norm.rms = get<bool>(values, "rms_norm");
  spec.norm.epsilon = get<float>(values, "norm_eps");
  if (!(spec.norm.epsilon >= 0.0f) || !std::isfinite(spec.norm.epsilon))
    throw std::invalid_argument("norm_eps must be finite and not negative");
  spec.embedding_norm = get<bool>(values, "embedding_norm");
  spec.frequencies = get<std::vector<double>>(values, "frequencies");
  spec.encoder_buckets = get_buckets(values, "encoder_edges", true);
  spec.decoder_buckets = get_buckets(values, "decoder_edges", false);
  if (spec.heads % spec.kv_heads != 0 || spec.head_width > (1 << 24) / spec.heads)
    throw std::invalid_argument("heads must be a multiple of kv_heads, and not too wide");
  if (spec.recurrent && spec.heads * spec.head_width != spec.width)
    throw std::invalid_argument("recurrent heads must divide the width");
  check_frequencies(spec);
  if (spec.width % 2 != 0) throw std::invalid_argument("width must be even");
  return spec;
}

void read_side_decoder(const nb::dict& values, const ModelSpec& target, SideDecoderSpec& spec) {
  spec.layers = get_positive(values, "layers");
  spec.heads = get_positive(values, "heads");
  spec.inner = get_positive(values, "inner");
  spec.pre_norm = get<bool>(values, "pre_norm");
  spec.gated = get<bool>(values, "gated");
  spec.activation = get_activation(values);
  if (target.width % spec.heads != 0) throw std::invalid_argument("heads must divide the width");
}

DrafterSpec read_drafter(const nb::dict& values, const ModelSpec& target) {
  DrafterSpec spec;
  read_side_decoder(values, target, spec);
  spec.block = get_positive(values, "block");
  spec.rank = get<int>(values, "rank");
  spec.candidates = get_positive(values, "candidates");
  spec.taps = get<std::vector<int>>(values, "taps");
  spec.shortlist = get<std::vector<int>>(values, "shortlist");
  if (spec.rank < 0 || spec.rank > 1 << 24)
    throw std::invalid_argument("rank is " + std::to_string(spec.rank));
  if (spec.taps.empty()) throw std::invalid_argument("taps are missing");
  for (int tap : spec.taps)
    if (tap < 0 || tap >= target.decoder_layers)
      throw std::invalid_argument("taps: no layer " + std::to_string(tap));
  for (int token : spec.shortlist)
    if (token < 0 || token >= target.vocab_size)
      throw std::invalid_argument("shortlist: token " + std::to_string(token) +
                                  " is not in the vocabulary");
  return spec;
}

CtcSpec read_ctc(const nb::dict& values, const ModelSpec& target) {
  CtcSpec spec;
  read_side_decoder(values, target, spec);
  spec.upsample = get_positive(values, "upsample");
  if (spec.upsample > 1024) throw std::invalid_argument("upsample is above 1024");
  return spec;
}

void init_engine(Engine* self, const nb::dict& model, const nb::object& weights,
                 const std::optional<nb::dict>& drafter, const std::optional<nb::dict>& ctc,
                 const std::string& instruction_set, int threads) {
  if (threads < 1 || threads > 1024)
    throw std::invalid_argument("threads is " + std::to_string(threads) + ", expected 1 to 1024");
  std::vector<Numbers> owners;
  PackedFile file;
  if (!nb::try_cast<PackedFile>(weights, file))
    file.weights =
        std::make_shared<PackedWeights>(read_weights(nb::cast<nb::dict>(weights), owners));
  const ModelSpec spec = read_model(model);
  std::optional<DrafterSpec> drafter_spec;
  std::optional<CtcSpec> ctc_spec;
  if (drafter) drafter_spec = read_drafter(*drafter, spec);
  if (ctc) ctc_spec = read_ctc(*ctc, spec);
  const nb::gil_scoped_release release;
  new (self) Engine(Model(file.weights, spec, drafter_spec, ctc_spec, instruction_set), threads);
}

// --- Queries ---

Query make_query(Query::Kind kind, const std::vector<int>& rows, int places, bool log_probs) {
  Query query;
  query.kind = kind;
  query.sequences = rows;
  query.places = places;
  query.log_probs = log_probs;
  return query;
}

Query argmax_query(const std::vector<int>& rows, int places, bool log_probs,
                   const std::vector<int>& forbidden, const std::vector<int>& ends,
                   const std::vector<int>& early) {
  Query query = make_query(Query::Kind::argmax, rows, places, log_probs);
  query.forbidden = {forbidden, ends, early};
  return query;
}

Query top_k_query(const std::vector<int>& rows, int count, const std::vector<int>& forbidden,
                  const std::vector<int>& ends, const std::vector<int>& early) {
  Query query = make_query(Query::Kind::top_k, rows, 1, true);
  query.count = count;
  query.forbidden = {forbidden, ends, early};
  return query;
}

Query sample_query(const std::vector<int>& rows, bool log_probs, double temperature, int top_k,
                   double top_p, const std::vector<double>& uniform,
                   const std::vector<int>& forbidden, const std::vector<int>& ends,
                   const std::vector<int>& early) {
  Query query = make_query(Query::Kind::sample, rows, 1, log_probs);
  query.temperature = temperature;
  query.top_k = top_k;
  query.top_p = top_p;
  query.uniform = uniform;
  query.forbidden = {forbidden, ends, early};
  return query;
}

Query log_probs_query(const std::vector<int>& rows, int places, const TokenRows& given,
                      const std::vector<int>& ends) {
  Query query = make_query(Query::Kind::log_probs, rows, places, true);
  query.given = given;
  query.ends = ends;
  return query;
}

// --- Calls. They return lists, which for a few numbers are faster than arrays. ---

// A new array that owns its data.
template <typename T>
struct NewArray {
  T* data;
  nb::ndarray<nb::numpy, T> array;
};

template <typename T, typename Memory>
NewArray<T> own_array(Memory* memory, std::initializer_list<std::size_t> shape) {
  nb::capsule owner(memory, [](void* held) noexcept { delete static_cast<Memory*>(held); });
  return {memory->data(), nb::ndarray<nb::numpy, T>(memory->data(), shape, owner)};
}

std::size_t size_of(std::initializer_list<std::size_t> shape) {
  std::size_t size = 1;
  for (std::size_t n : shape) size *= n;
  return std::max<std::size_t>(size, 1);
}

template <typename T>
NewArray<T> make_array(std::initializer_list<std::size_t> shape) {
  return own_array<T>(new Buffer<T>(size_of(shape)), shape);
}

// An array whose memory returns to the engine's pool.
NewArray<float> make_logits(Engine& engine, std::initializer_list<std::size_t> shape) {
  return own_array<float>(new PooledBuffer(engine.buffer_pool(), size_of(shape)), shape);
}

Floats call_extend(Engine& engine, State& state, const TokenRows& tokens, bool last) {
  const auto vocab_size = static_cast<std::size_t>(engine.model().spec.vocab_size);
  std::size_t longest = 0;
  for (const std::vector<int>& row : tokens) longest = std::max(longest, row.size());
  // Checked before memory for the scores is allocated.
  if (longest > kMaxTokens) throw std::invalid_argument("extend: too many tokens");
  const std::size_t width = last ? 1 : longest;
  const NewArray<float> logits = make_logits(engine, {tokens.size(), width, vocab_size});
  {
    const nb::gil_scoped_release release;
    float* row = logits.data;
    for (const std::vector<int>& given : tokens) {  // zeros where there is no token
      const std::size_t used = std::min(width, given.size());
      std::fill(row + used * vocab_size, row + width * vocab_size, 0.0f);
      row += width * vocab_size;
    }
    extend(engine, state, tokens, static_cast<int>(width), last, logits.data);
  }
  return logits.array;
}

// The number of sequences and the length of the longest source.
std::pair<std::size_t, std::size_t> source_sizes(State& state) {
  const State::ExclusiveUse use(state);
  int longest = 0;
  for (const auto& sequence : state.sequences)
    if (sequence->source) longest = std::max(longest, sequence->source->length);
  return {state.sequences.size(), static_cast<std::size_t>(longest)};
}

Floats call_cross_attention(Engine& engine, State& state, const TokenRows& tokens) {
  const ModelSpec& spec = engine.model().spec;
  if (!spec.has_encoder())
    throw std::invalid_argument("cross_attention: a language model has no source");
  const std::size_t keys = source_sizes(state).second;
  std::size_t rows = 0;
  for (const std::vector<int>& row : tokens) rows += row.size();
  const auto layers = static_cast<std::size_t>(spec.decoder_layers);
  const auto heads = static_cast<std::size_t>(spec.heads);
  constexpr std::size_t kMaxWeights = std::size_t{1} << 26;  // checked before memory is allocated
  if (rows > static_cast<std::size_t>(kMaxTokens) || rows * keys > kMaxWeights / (layers * heads))
    throw std::invalid_argument("cross_attention: too many tokens");
  const auto weights = make_array<float>({rows, layers, heads, keys});
  {
    const nb::gil_scoped_release release;
    std::fill_n(weights.data, rows * layers * heads * keys, 0.0f);
    cross_attention(engine, state, tokens, static_cast<int>(keys), weights.data);
  }
  return weights.array;
}

TokenRows call_argmax(Engine& engine, State& state, const TokenRows& tokens,
                      const std::vector<int>& forbidden, const std::vector<int>& ends,
                      const std::vector<int>& early) {
  const nb::gil_scoped_release release;
  return argmax(engine, state, tokens, {forbidden, ends, early});
}

TokenRows call_greedy(Engine& engine, State& state, const std::vector<int>& last, int steps,
                      const std::vector<int>& ends, const std::vector<int>& forbidden) {
  const nb::gil_scoped_release release;
  return greedy(engine, state, last, steps, ends, {forbidden, {}, {}});
}

std::vector<std::pair<TokenRows, std::vector<std::vector<float>>>> call_answer(
    Engine& engine, State& state, const TokenRows& tokens, const std::vector<Query*>& pointers,
    bool last) {
  std::vector<Query> queries;
  for (const Query* query : pointers) {
    if (query == nullptr) throw std::invalid_argument("answer: a query is None");
    queries.push_back(*query);
  }
  const nb::gil_scoped_release release;
  std::vector<std::pair<TokenRows, std::vector<std::vector<float>>>> answers;
  for (Answer& found : answer(engine, state, tokens, queries, last))
    answers.emplace_back(std::move(found.tokens), std::move(found.log_probs));
  return answers;
}

nb::tuple call_draft_and_verify(Engine& engine, State& state, const std::vector<int>& lengths,
                                const std::vector<int>& last, const std::vector<int>& counts,
                                double min_survival, const std::vector<int>& stop_tokens,
                                const std::vector<int>& forbidden, const std::vector<int>& ends,
                                const std::vector<int>& early, bool log_probs) {
  RoundOutput round;
  {
    const nb::gil_scoped_release release;
    round = draft_and_verify(engine, state, lengths, last, counts, min_survival, stop_tokens,
                             {forbidden, ends, early}, log_probs);
  }
  return nb::make_tuple(std::move(round.drafted.tokens), std::move(round.best.tokens),
                        std::move(round.best.log_probs), std::move(round.drafted.confidence),
                        round.drafting_seconds);
}

nb::tuple call_draft(Engine& engine, State& state, const std::vector<int>& last,
                     const std::vector<int>& counts, double temperature,
                     const std::vector<std::vector<double>>& uniform, const TokenRows& known) {
  int longest = 0;
  for (const int count : counts) longest = std::max(longest, count);
  if (longest > kMaxTokens)
    throw std::invalid_argument("draft: cannot draft " + std::to_string(longest) + " tokens");
  const DraftSampling sampling{static_cast<float>(temperature), uniform, known};
  const std::size_t sequences = counts.size(), slots = static_cast<std::size_t>(longest);
  const auto candidates = static_cast<std::size_t>(engine.model().candidates());
  const auto ids = make_array<std::int64_t>({sequences, slots, candidates});
  const auto probabilities = make_array<float>({sequences, slots, candidates});
  Draft drafted;
  {
    const nb::gil_scoped_release release;
    std::fill_n(ids.data, sequences * slots * candidates, 0);
    std::fill_n(probabilities.data, sequences * slots * candidates, 0.0f);
    drafted = draft(engine, state, last, counts, sampling, {ids.data, probabilities.data, longest});
  }
  return nb::make_tuple(std::move(drafted.tokens), ids.array, probabilities.array,
                        std::move(drafted.confidence));
}

Floats call_ctc(Engine& engine, State& state, const std::optional<Ids>& known) {
  const auto [sequences, longest] = source_sizes(state);
  const std::size_t slots = longest * static_cast<std::size_t>(engine.model().upsample());
  if (known && (known->shape(0) != sequences || known->shape(1) != slots))
    throw std::invalid_argument("ctc: known tokens must be [rows, slots]");
  const auto vocab_size = static_cast<std::size_t>(engine.model().spec.vocab_size);
  const NewArray<float> logits = make_logits(engine, {sequences, slots, vocab_size});
  {
    const nb::gil_scoped_release release;
    std::fill_n(logits.data, sequences * slots * vocab_size, 0.0f);
    ctc(engine, state, known ? known->data() : nullptr, static_cast<int>(sequences),
        static_cast<int>(slots), logits.data);
  }
  return logits.array;
}

// A method of `State` that holds it exclusively.
template <auto method>
auto exclusive(State& state) {
  const State::ExclusiveUse use(state);
  return (state.*method)();
}

template <int Sequence::* field>
std::vector<int> each(State& state) {
  const State::ExclusiveUse use(state);
  std::vector<int> out;
  for (const auto& sequence : state.sequences) out.push_back((*sequence).*field);
  return out;
}

void bind_state(nb::module_& module) {
  nb::class_<State>(module, "State")
      .def_prop_ro("lengths", &each<&Sequence::length>)
      .def_prop_ro("capacities", &each<&Sequence::capacity>)
      .def_prop_ro("bytes", &exclusive<&State::bytes>)
      .def("__len__", &exclusive<&State::size>)
      .def("rollback",
           [](State& state, const std::vector<int>& lengths) {
             const State::ExclusiveUse use(state);
             state.rollback(lengths);
           })
      .def("select",
           [](State& state, const std::vector<int>& rows) {
             const State::ExclusiveUse use(state);
             state.select(rows);
           })
      .def("join", [](State& state, State& other, const std::vector<int>& at) {
        if (&state == &other) throw std::invalid_argument("join: a state cannot join itself");
        const State::ExclusiveUse use(state), others(other);
        state.join(other, at);
      });
}

void bind_files(nb::module_& module) {
  nb::class_<PackedFile>(module, "PackedFile")
      .def(
          "__init__",
          [](PackedFile* self, const std::filesystem::path& path) {
            new (self) PackedFile{std::make_shared<PackedWeights>(path)};
          },
          "path"_a)
      .def_prop_ro("about", [](const PackedFile& file) { return file.weights->about(); })
      .def("verify", [](const PackedFile& file) {
        const nb::gil_scoped_release release;
        file.weights->verify();
      });
  module.def(
      "checksum",
      [](const std::filesystem::path& path) {
        const nb::gil_scoped_release release;
        const MappedFile file(path);
        return file.checksum({file.data(), file.size()});
      },
      "path"_a);
}

void bind_query(nb::module_& module) {
  nb::class_<Query>(module, "Query")
      .def_static("argmax", &argmax_query, "rows"_a, "places"_a, "log_probs"_a, "forbidden"_a,
                  "ends"_a, "early"_a)
      .def_static("top_k", &top_k_query, "rows"_a, "count"_a, "forbidden"_a, "ends"_a, "early"_a)
      .def_static("sample", &sample_query, "rows"_a, "log_probs"_a, "temperature"_a, "top_k"_a,
                  "top_p"_a, "uniform"_a, "forbidden"_a, "ends"_a, "early"_a)
      .def_static("log_probs", &log_probs_query, "rows"_a, "places"_a, "given"_a, "ends"_a);
}

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def("__init__", &init_engine, "model"_a, "weights"_a, "drafter"_a.none(), "ctc"_a.none(),
           "instruction_set"_a, "threads"_a)
      .def_prop_ro("instruction_set",
                   [](const Engine& engine) { return engine.model().kernel.name; })
      .def_prop_ro("threads", &Engine::threads)
      .def_prop_ro("bytes", [](const Engine& engine) { return engine.model().weights->bytes(); })
      .def_prop_ro("embedding_bytes",
                   [](const Engine& engine) { return engine.model().embedding_bytes(); })
      .def_prop_ro("mapped", [](const Engine& engine) { return engine.model().weights->mapped(); })
      .def_prop_ro(
          "idle_bytes",
          [](const Engine& engine) { return sizeof(float) * engine.buffer_pool()->idle_size(); })
      .def(
          "save",
          [](const Engine& engine, const std::filesystem::path& path, const std::string& about) {
            const nb::gil_scoped_release release;
            engine.model().weights->save(path, about);
          },
          "path"_a, "about"_a)
      .def("encode", &Engine::encode, "sources"_a, "capacities"_a, "drafting"_a, "parallel"_a,
           "shortlists"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("extend", &call_extend, "state"_a, "tokens"_a, "last"_a)
      .def("cross_attention", &call_cross_attention, "state"_a, "tokens"_a)
      .def("argmax", &call_argmax, "state"_a, "tokens"_a, "forbidden"_a, "ends"_a, "early"_a)
      .def("greedy", &call_greedy, "state"_a, "last"_a, "steps"_a, "ends"_a, "forbidden"_a)
      .def("answer", &call_answer, "state"_a, "tokens"_a, "queries"_a, "last"_a)
      .def("draft_and_verify", &call_draft_and_verify, "state"_a, "lengths"_a, "last"_a, "counts"_a,
           "min_survival"_a, "stop_tokens"_a, "forbidden"_a, "ends"_a, "early"_a, "log_probs"_a)
      .def("draft", &call_draft, "state"_a, "last"_a, "counts"_a, "temperature"_a, "uniform"_a,
           "known"_a)
      .def("ctc", &call_ctc, "state"_a, "known"_a.noconvert().none());
}

}  // namespace
}  // namespace outrider

NB_MODULE(_core, module) {
  using namespace outrider;
  // Errors of the system, such as too many threads, become OSError instead of RuntimeError.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      const nb::tuple values = nb::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, values.ptr());
    }
  });
  module.def("instruction_sets", &available_kernels);
  bind_state(module);
  bind_files(module);
  bind_query(module);
  bind_engine(module);
}
