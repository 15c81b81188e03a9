// The border to Python: shapes, ids and lengths are checked here or in the model, before any work.
#include "model.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <limits>
#include <system_error>

namespace nb = nanobind;
using namespace nb::literals;

namespace outrider {
namespace {

using Numbers = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Lengths = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Uniforms = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int narrow(std::int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    throw std::invalid_argument(std::to_string(value) + " is out of range");
  return static_cast<int>(value);
}

std::vector<int> to_ints(const std::int64_t* values, std::size_t count) {
  std::vector<int> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = narrow(values[i]);
  return out;
}

// An array that Python owns, and its data.
template <typename T>
struct Made {
  T* data;
  nb::ndarray<nb::numpy, T> array;
};

template <typename T>
Made<T> make_array(std::initializer_list<std::size_t> shape) {
  std::size_t size = 1;
  for (std::size_t n : shape) size *= n;
  auto* buffer = new Buffer<T>(std::max<std::size_t>(size, 1));
  nb::capsule owner(buffer, [](void* held) noexcept { delete static_cast<Buffer<T>*>(held); });
  return {buffer->data(), nb::ndarray<nb::numpy, T>(buffer->data(), shape, owner)};
}

// The same for logits, whose memory the model keeps for the next ones.
Made<float> make_logits(Model& model, std::initializer_list<std::size_t> shape) {
  std::size_t size = 1;
  for (std::size_t n : shape) size *= n;
  auto* pooled = new PooledBuffer(model.buffer_pool(), std::max<std::size_t>(size, 1));
  nb::capsule owner(pooled, [](void* held) noexcept { delete static_cast<PooledBuffer*>(held); });
  return {pooled->data(), nb::ndarray<nb::numpy, float>(pooled->data(), shape, owner)};
}

Activation to_activation(const std::string& name) {
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "silu") return Activation::silu;
  throw std::invalid_argument("activation '" + name + "' is not computed here");
}

Position to_position(const std::string& name) {
  if (name == "none") return Position::none;
  if (name == "sinusoidal") return Position::sinusoidal;
  if (name == "learned") return Position::learned;
  if (name == "rotary") return Position::rotary;
  throw std::invalid_argument("position '" + name + "' is not computed here");
}

Precision to_precision(const std::string& name) {
  if (name == "int8") return Precision::int8;
  if (name == "float32") return Precision::float32;
  throw std::invalid_argument("dtype '" + name + "' is not computed here");
}

// A value of a description. What is missing, of another type or out of range is named.
template <typename T>
T get(const nb::dict& values, const char* key) {
  T value{};
  if (!values.contains(key)) throw std::invalid_argument(std::string(key) + " is missing");
  if (!nb::try_cast<T>(values[key], value))
    throw std::invalid_argument(std::string(key) + " is of another type, or out of range");
  return value;
}

int positive(const nb::dict& values, const char* key) {
  const int value = get<int>(values, key);
  if (value < 1 || value > 1 << 24)
    throw std::invalid_argument(std::string(key) + " is " + std::to_string(value));
  return value;
}

void check_heads(int width, int heads, int kv_heads) {
  if (width % heads != 0 || heads % kv_heads != 0)
    throw std::invalid_argument("heads do not divide the width, or their keys do not divide them");
}

ModelSpec read_model(const nb::dict& values) {
  ModelSpec spec;
  spec.words = positive(values, "words");
  spec.width = positive(values, "width");
  spec.heads = positive(values, "heads");
  spec.kv_heads = positive(values, "kv_heads");
  spec.inner = positive(values, "inner");
  spec.encoder_layers = get<int>(values, "encoder_layers");
  if (spec.encoder_layers < 0) throw std::invalid_argument("encoder_layers is below zero");
  spec.decoder_layers = positive(values, "decoder_layers");
  spec.max_positions = positive(values, "max_positions");
  spec.embedding_scale = get<float>(values, "embedding_scale");
  if (!std::isfinite(spec.embedding_scale))
    throw std::invalid_argument("embedding_scale is not finite");
  spec.pre_norm = get<bool>(values, "pre_norm");
  spec.gated = get<bool>(values, "gated");
  spec.shared_embeddings = get<bool>(values, "shared_embeddings");
  spec.position = to_position(get<std::string>(values, "position"));
  spec.activation = to_activation(get<std::string>(values, "activation"));
  spec.precision = to_precision(get<std::string>(values, "dtype"));
  check_heads(spec.width, spec.heads, spec.kv_heads);
  if (spec.width % 2 != 0) throw std::invalid_argument("width must be even");
  return spec;
}

void read_side_decoder(const nb::dict& values, const ModelSpec& target, SideDecoderSpec& spec) {
  spec.layers = positive(values, "layers");
  spec.heads = positive(values, "heads");
  spec.inner = positive(values, "inner");
  spec.pre_norm = get<bool>(values, "pre_norm");
  spec.gated = get<bool>(values, "gated");
  spec.activation = to_activation(get<std::string>(values, "activation"));
  check_heads(target.width, spec.heads, spec.heads);
}

DrafterSpec read_drafter(const nb::dict& values, const ModelSpec& target) {
  DrafterSpec spec;
  read_side_decoder(values, target, spec);
  spec.block = positive(values, "block");
  spec.rank = get<int>(values, "rank");
  spec.candidates = positive(values, "candidates");
  spec.taps = get<std::vector<int>>(values, "taps");
  spec.kept = get<std::vector<int>>(values, "kept");
  if (spec.rank < 0 || spec.rank > 1 << 24)
    throw std::invalid_argument("rank is " + std::to_string(spec.rank));
  if (spec.taps.empty()) throw std::invalid_argument("taps are missing");
  for (int tap : spec.taps)
    if (tap < 0 || tap >= target.decoder_layers)
      throw std::invalid_argument("there is no layer " + std::to_string(tap) + " to tap");
  for (int token : spec.kept)
    if (token < 0 || token >= target.words)
      throw std::invalid_argument("the shortlist holds a token that is not a word");
  return spec;
}

CtcSpec read_ctc(const nb::dict& values, const ModelSpec& target) {
  CtcSpec spec;
  read_side_decoder(values, target, spec);
  spec.upsample = positive(values, "upsample");
  if (spec.upsample > 1024) throw std::invalid_argument("upsample is above 1024");
  return spec;
}

// numpy has no bfloat16: uint16 holds its bits.
NumberType to_number_type(const std::string& name, const nb::dlpack::dtype& type) {
  if (type == nb::dtype<float>()) return NumberType::float32;
  if (type == nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1})
    return NumberType::float16;
  if (type == nb::dtype<std::uint16_t>()) return NumberType::bfloat16;
  throw std::invalid_argument("'" + name + "' is not of float32, float16 or bfloat16 (as uint16)");
}

Weights read_weights(const nb::dict& arrays, std::vector<Numbers>& held) {
  Weights weights;
  for (const auto& [key, value] : arrays) {
    const auto name = nb::cast<std::string>(key);
    Numbers array;
    if (!nb::try_cast<Numbers>(value, array, false))  // no copy is made unasked
      throw std::invalid_argument("'" + name + "' is not an array, or not in order");
    Array one{name, array.data(), to_number_type(name, array.dtype()), {}};
    for (std::size_t i = 0; i < array.ndim(); ++i)
      one.shape.push_back(narrow(static_cast<std::int64_t>(array.shape(i))));
    weights.insert(std::move(one));
    held.push_back(std::move(array));
  }
  return weights;
}

// A file that a model was saved to; models that are built from it keep it mapped.
struct PackedFile {
  std::shared_ptr<PackedWeights> weights;
};

void build(Model* self, const nb::dict& model, const nb::object& weights,
           const std::optional<nb::dict>& drafter, const std::optional<nb::dict>& ctc,
           const std::string& instruction_set, int threads) {
  if (threads < 1 || threads > 1024)
    throw std::invalid_argument("threads is " + std::to_string(threads) + ", expected 1 to 1024");
  std::vector<Numbers> held;
  PackedFile file;
  if (!nb::try_cast<PackedFile>(weights, file))
    file.weights = std::make_shared<PackedWeights>(read_weights(nb::cast<nb::dict>(weights), held));
  const ModelSpec spec = read_model(model);
  std::optional<DrafterSpec> drafter_spec;
  std::optional<CtcSpec> ctc_spec;
  if (drafter) drafter_spec = read_drafter(*drafter, spec);
  if (ctc) ctc_spec = read_ctc(*ctc, spec);
  const nb::gil_scoped_release release;
  new (self) Model(file.weights, spec, drafter_spec, ctc_spec, instruction_set, threads);
}

void save(const Model& model, const std::filesystem::path& path, const std::string& about) {
  const nb::gil_scoped_release release;
  model.weights().save(path, about);
}

std::unique_ptr<State> encode(Model& model, const std::vector<std::vector<int>>& sources,
                              int capacity, bool drafting, bool parallel) {
  const nb::gil_scoped_release release;
  return model.encode(sources, capacity, drafting, parallel);
}

nb::ndarray<nb::numpy, float> extend(Model& model, State& state, const Ids& tokens,
                                     const std::optional<Lengths>& counts, bool last) {
  const std::size_t sequences = tokens.shape(0), width = tokens.shape(1);
  if (static_cast<int>(sequences) != state.size() || (counts && counts->shape(0) != sequences))
    throw std::invalid_argument(
        "extend: tokens and counts must have one row for each of the state");
  const std::vector<int> ids = to_ints(tokens.data(), sequences * width);
  const std::vector<int> real = counts ? to_ints(counts->data(), sequences)
                                       : std::vector<int>(sequences, static_cast<int>(width));
  const auto words = static_cast<std::size_t>(model.spec().words);
  Made<float> logits = make_logits(model, {sequences, last ? 1 : width, words});
  {
    const nb::gil_scoped_release release;
    if (counts) std::fill_n(logits.data, sequences * (last ? 1 : width) * words, 0.0f);
    model.extend(state, ids, static_cast<int>(width), real, last, logits.data);
  }
  return logits.array;
}

// Lists, not arrays: for a handful of numbers they take a fraction of the time.
std::vector<std::vector<std::int64_t>> likeliest(Model& model, State& state,
                                                 const std::vector<std::vector<int>>& tokens,
                                                 const std::vector<int>& forbidden) {
  const nb::gil_scoped_release release;
  const std::size_t width = tokens.empty() ? 0 : tokens[0].size();
  std::vector<int> ids;
  for (const std::vector<int>& row : tokens) {
    if (row.size() != width) throw std::invalid_argument("likeliest: rows must be equally long");
    ids.insert(ids.end(), row.begin(), row.end());
  }
  if (static_cast<int>(tokens.size()) != state.size() || width == 0)
    throw std::invalid_argument("likeliest: tokens must have one row for each of the state");
  std::vector<std::int64_t> best(ids.size());
  model.likeliest(state, ids, narrow(static_cast<std::int64_t>(width)), forbidden, best.data());
  std::vector<std::vector<std::int64_t>> rows;
  for (auto at = best.begin(); at != best.end(); at += static_cast<std::ptrdiff_t>(width))
    rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(width));
  return rows;
}

nb::tuple draft_and_verify(Model& model, State& state, const std::vector<int>& held,
                           const std::vector<int>& last, int slots, double min_survival,
                           const std::vector<int>& ends, const std::vector<int>& forbidden) {
  RoundOutput round;
  {
    const nb::gil_scoped_release release;
    round = model.draft_and_verify(state, held, last, slots, min_survival, ends, forbidden);
  }
  return nb::make_tuple(round.drafted, round.best, round.drafting_seconds);
}

nb::tuple draft(Model& model, State& state, const Lengths& last, int slots, double temperature,
                const std::optional<Uniforms>& uniform, const std::optional<Ids>& known) {
  const std::size_t sequences = last.shape(0);
  if (slots < 1 || slots > 1 << 20 || static_cast<int>(sequences) != state.size())
    throw std::invalid_argument(
        "draft: one token for each row of the state, and at least one slot");
  const auto wide = static_cast<std::size_t>(slots);
  if ((uniform && (uniform->shape(0) != sequences || uniform->shape(1) != wide)) ||
      (known && (known->shape(0) != sequences || known->shape(1) != wide)))
    throw std::invalid_argument("draft: numbers and known tokens must be [rows, slots]");
  if (!(static_cast<float>(temperature) > 0.0f) || !std::isfinite(static_cast<float>(temperature)))
    throw std::invalid_argument("temperature must be above zero, and a number of 32 bits");
  const std::vector<int> ids = to_ints(last.data(), sequences);
  const auto count = static_cast<std::size_t>(model.candidates());
  auto tokens = make_array<std::int64_t>({sequences, wide});
  auto candidates = make_array<std::int64_t>({sequences, wide, count});
  auto probabilities = make_array<float>({sequences, wide, count});
  auto confidence = make_array<float>({sequences, wide});
  const DraftSampling sampling{static_cast<float>(temperature), uniform ? uniform->data() : nullptr,
                               known ? known->data() : nullptr};
  {
    const nb::gil_scoped_release release;
    model.draft(state, ids, slots, sampling,
                {tokens.data, candidates.data, probabilities.data, confidence.data});
  }
  return nb::make_tuple(tokens.array, candidates.array, probabilities.array, confidence.array);
}

nb::ndarray<nb::numpy, float> ctc(Model& model, State& state, const std::optional<Ids>& known) {
  std::size_t slots = 0;
  const auto sequences = static_cast<std::size_t>(state.size());
  for (const auto& sequence : state.sequences)
    if (sequence->source)
      slots =
          std::max(slots, static_cast<std::size_t>(sequence->source->length * model.upsample()));
  if (known && (known->shape(0) != sequences || known->shape(1) != slots))
    throw std::invalid_argument("ctc: known tokens must be [rows, slots]");
  const auto words = static_cast<std::size_t>(model.spec().words);
  Made<float> logits = make_logits(model, {sequences, slots, words});
  {
    const nb::gil_scoped_release release;
    std::fill_n(logits.data, sequences * slots * words, 0.0f);
    model.ctc(state, known ? known->data() : nullptr, static_cast<int>(sequences),
              static_cast<int>(slots), logits.data);
  }
  return logits.array;
}

std::vector<int> lengths(const State& state) {
  std::vector<int> out;
  for (const auto& sequence : state.sequences) out.push_back(sequence->length);
  return out;
}

std::vector<int> source_lengths(const State& state) {
  std::vector<int> out;
  for (const auto& sequence : state.sequences)
    out.push_back(sequence->source ? sequence->source->length : 0);
  return out;
}

}  // namespace
}  // namespace outrider

NB_MODULE(_core, module) {
  using namespace outrider;
  // What the system refuses (threads) is an OSError; nanobind makes a RuntimeError of it, as of
  // everything that it does not know.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      const nb::tuple values = nb::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, values.ptr());
    }
  });
  module.def("instruction_sets", &available_kernels,
             "Instruction sets this machine can run, best first.");
  nb::class_<State>(module, "State")
      .def_prop_ro("lengths", &lengths)
      .def_prop_ro("source_lengths", &source_lengths)
      .def_prop_ro("capacity", &State::capacity)
      .def_prop_ro("bytes", &State::bytes)
      .def("__len__", &State::size)
      .def("rollback",
           [](State& state, const std::vector<int>& lengths) {
             const State::ExclusiveUse use(state);
             state.rollback(lengths);
           })
      .def("select", [](State& state, const std::vector<int>& rows) {
        const State::ExclusiveUse use(state);
        state.select(rows);
      });
  nb::class_<PackedFile>(module, "PackedFile")
      .def(
          "__init__",
          [](PackedFile* self, const std::filesystem::path& path) {
            new (self) PackedFile{std::make_shared<PackedWeights>(path)};
          },
          "path"_a)
      .def_prop_ro("about", [](const PackedFile& file) { return file.weights->about(); });
  nb::class_<Model>(module, "Model")
      .def("__init__", &build, "model"_a, "weights"_a, "drafter"_a.none(), "ctc"_a.none(),
           "instruction_set"_a, "threads"_a)
      .def_prop_ro("instruction_set", &Model::instruction_set)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("bytes", [](const Model& model) { return model.weights().bytes(); })
      .def_prop_ro("embedding_bytes", &Model::embedding_bytes)
      .def_prop_ro("mapped", [](const Model& model) { return model.weights().mapped(); })
      .def("save", &save, "path"_a, "about"_a)
      .def("encode", &encode, "sources"_a, "capacity"_a, "drafting"_a, "parallel"_a)
      .def("extend", &extend, "state"_a, "tokens"_a.noconvert(), "counts"_a.noconvert().none(),
           "last"_a)
      .def("likeliest", &likeliest, "state"_a, "tokens"_a, "forbidden"_a)
      .def("draft_and_verify", &draft_and_verify, "state"_a, "held"_a, "last"_a, "slots"_a,
           "min_survival"_a, "ends"_a, "forbidden"_a)
      .def("draft", &draft, "state"_a, "last"_a.noconvert(), "slots"_a, "temperature"_a,
           "uniform"_a.noconvert().none(), "known"_a.noconvert().none())
      .def("ctc", &ctc, "state"_a, "known"_a.noconvert().none());
}
