// The border to Python: shapes, ids and lengths are checked here or in the model, before any work.
#include "binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <system_error>

using namespace nb::literals;

namespace outrider {
namespace {

using Numbers = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int narrow(std::int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    throw std::invalid_argument(std::to_string(value) + " is out of range");
  return static_cast<int>(value);
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

// numpy has no bfloat16: uint16 holds its bits.
NumberType to_number_type(const std::string& name, const nb::dlpack::dtype& type) {
  if (type == nb::dtype<float>()) return NumberType::float32;
  if (type == nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1})
    return NumberType::float16;
  if (type == nb::dtype<std::uint16_t>()) return NumberType::bfloat16;
  throw std::invalid_argument("'" + name + "' is not of float32, float16 or bfloat16 (as uint16)");
}

Numbers to_numbers(const std::string& name, nb::handle value) {
  Numbers array;
  if (!nb::try_cast<Numbers>(value, array, false))  // no copy is made unasked
    throw std::invalid_argument("'" + name + "' is not an array, or not in order");
  return array;
}

// An array, or a pair of int8 and their scales, one a row.
Array read_array(const std::string& name, nb::handle value, std::vector<Numbers>& held) {
  const bool scaled = nb::isinstance<nb::tuple>(value) && nb::len(value) == 2;
  const Numbers array = to_numbers(name, scaled ? nb::handle(value[0]) : value);
  Array one{name, array.data(), NumberType::int8, {}};
  for (std::size_t i = 0; i < array.ndim(); ++i)
    one.shape.push_back(narrow(static_cast<std::int64_t>(array.shape(i))));
  if (scaled) {
    const Numbers scales = to_numbers(name, value[1]);
    if (array.dtype() != nb::dtype<std::int8_t>() || scales.dtype() != nb::dtype<float>() ||
        array.ndim() != 2 || scales.ndim() != 1 || scales.shape(0) != array.shape(0))
      throw std::invalid_argument("'" + name + "' is not rows of int8 and a float32 scale for each");
    one.scales.resize(scales.shape(0));
    std::memcpy(one.scales.data(), scales.data(), scales.nbytes());
  } else {
    one.type = to_number_type(name, array.dtype());
  }
  held.push_back(array);
  return one;
}

Weights read_weights(const nb::dict& arrays, std::vector<Numbers>& held) {
  Weights weights;
  for (const auto& [key, value] : arrays)
    weights.insert(read_array(nb::cast<std::string>(key), value, held));
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

std::unique_ptr<State> encode(Model& model, const Tokens& sources,
                              const std::vector<int>& capacities, bool drafting, bool parallel,
                              const Tokens& words) {
  const nb::gil_scoped_release release;
  return model.encode(sources, capacities, drafting, parallel, words);
}

std::size_t longest_of(const Tokens& tokens) {
  std::size_t longest = 0;
  for (const std::vector<int>& row : tokens) longest = std::max(longest, row.size());
  return longest;
}

nb::ndarray<nb::numpy, float> extend(Model& model, State& state, const Tokens& tokens, bool last) {
  const auto words = static_cast<std::size_t>(model.spec().words);
  const std::size_t longest = longest_of(tokens), width = last ? 1 : longest;
  // Before there is memory for scores, which may be more than the machine has.
  if (longest > kMaxTokens) throw std::invalid_argument("extend: there are too many tokens");
  Made<float> logits = make_logits(model, {tokens.size(), width, words});
  {
    const nb::gil_scoped_release release;
    float* row = logits.data;
    for (const std::vector<int>& given : tokens) {  // scores that nobody computes
      const std::size_t real = std::min(width, given.size());
      std::fill(row + real * words, row + width * words, 0.0f);
      row += width * words;
    }
    model.extend(state, tokens, static_cast<int>(width), last, logits.data);
  }
  return logits.array;
}

nb::ndarray<nb::numpy, float> cross_attention(Model& model, State& state, const Tokens& tokens) {
  std::size_t keys = 0, rows = 0;
  {
    const State::ExclusiveUse use(state);
    for (const auto& sequence : state.sequences) {
      if (!sequence->source || model.spec().encoder_layers == 0)
        throw std::invalid_argument("cross_attention: this model reads no source");
      keys = std::max(keys, static_cast<std::size_t>(sequence->source->length));
    }
  }
  for (const std::vector<int>& row : tokens) rows += row.size();
  const auto layers = static_cast<std::size_t>(model.spec().decoder_layers);
  const auto heads = static_cast<std::size_t>(model.spec().heads);
  constexpr std::size_t kMost = std::size_t{1} << 26;  // weights, before there is memory for them
  if (rows > static_cast<std::size_t>(kMaxTokens) || rows * keys > kMost / (layers * heads))
    throw std::invalid_argument("cross_attention: there are too many tokens");
  auto weights = make_array<float>({rows, layers, heads, keys});
  {
    const nb::gil_scoped_release release;
    std::fill_n(weights.data, rows * layers * heads * keys, 0.0f);
    model.cross_attention(state, tokens, static_cast<int>(keys), weights.data);
  }
  return weights.array;
}

// Lists, not arrays: for a handful of numbers they take a fraction of the time.
Tokens likeliest(Model& model, State& state, const Tokens& tokens, const std::vector<int>& always,
                 const Tokens& by_row, const std::vector<int>& ends,
                 const std::vector<int>& early) {
  const nb::gil_scoped_release release;
  return model.likeliest(state, tokens, {always, by_row, ends, early});
}

Tokens greedy(Model& model, State& state, const std::vector<int>& newest, int steps,
              const std::vector<int>& ends, const std::vector<int>& always) {
  const nb::gil_scoped_release release;
  return model.greedy(state, newest, steps, ends, {always, {}, {}, {}});
}

std::vector<std::pair<Tokens, std::vector<std::vector<float>>>> answer(
    Model& model, State& state, const Tokens& tokens, const std::vector<Question*>& questions,
    bool last) {
  std::vector<Question> asked;
  for (const Question* question : questions) {
    if (question == nullptr) throw std::invalid_argument("answer: a question is missing");
    asked.push_back(*question);
  }
  const nb::gil_scoped_release release;
  std::vector<std::pair<Tokens, std::vector<std::vector<float>>>> found;
  for (Answer& one : model.answer(state, tokens, asked, last))
    found.emplace_back(std::move(one.tokens), std::move(one.log_probs));
  return found;
}

nb::tuple draft_and_verify(Model& model, State& state, const std::vector<int>& held,
                           const std::vector<int>& last, const std::vector<int>& counts,
                           double min_survival, const Tokens& text_ends,
                           const std::vector<int>& always, const Tokens& by_row,
                           const std::vector<int>& ends, const std::vector<int>& early,
                           bool log_probs) {
  RoundOutput round;
  {
    const nb::gil_scoped_release release;
    round = model.draft_and_verify(state, held, last, counts, min_survival, text_ends,
                                   {always, by_row, ends, early}, log_probs);
  }
  return nb::make_tuple(std::move(round.drafted.tokens), std::move(round.best.tokens),
                        std::move(round.best.log_probs), std::move(round.drafted.confidence),
                        round.drafting_seconds);
}

nb::tuple draft(Model& model, State& state, const std::vector<int>& last,
                const std::vector<int>& counts, const std::vector<double>& temperatures,
                const std::vector<std::vector<double>>& uniform, const Tokens& known) {
  int longest = 0;
  for (const int count : counts) longest = std::max(longest, count);
  if (longest > kMaxTokens)
    throw std::invalid_argument("draft: there is no block of " + std::to_string(longest) +
                                " tokens");
  DraftSampling sampling{{}, uniform, known};
  for (const double one : temperatures) sampling.temperatures.push_back(static_cast<float>(one));
  const std::size_t sequences = counts.size(), slots = static_cast<std::size_t>(longest);
  const auto count = static_cast<std::size_t>(model.candidates());
  auto candidates = make_array<std::int64_t>({sequences, slots, count});
  auto probabilities = make_array<float>({sequences, slots, count});
  Draft draft;
  {
    const nb::gil_scoped_release release;
    const std::size_t size = sequences * slots * count;
    std::fill_n(candidates.data, size, 0);
    std::fill_n(probabilities.data, size, 0.0f);
    draft = model.draft(state, last, counts, sampling,
                        {candidates.data, probabilities.data, longest});
  }
  return nb::make_tuple(std::move(draft.tokens), candidates.array, probabilities.array,
                        std::move(draft.confidence));
}

nb::ndarray<nb::numpy, float> ctc(Model& model, State& state, const std::optional<Ids>& known) {
  std::size_t slots = 0, sequences = 0;
  {
    const State::ExclusiveUse use(state);
    sequences = state.sequences.size();
    for (const auto& sequence : state.sequences)
      if (sequence->source)
        slots =
            std::max(slots, static_cast<std::size_t>(sequence->source->length * model.upsample()));
  }
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

std::vector<int> lengths(State& state) {
  const State::ExclusiveUse use(state);
  std::vector<int> out;
  for (const auto& sequence : state.sequences) out.push_back(sequence->length);
  return out;
}

std::vector<int> capacities(State& state) {
  const State::ExclusiveUse use(state);
  std::vector<int> out;
  for (const auto& sequence : state.sequences) out.push_back(sequence->capacity);
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
      .def_prop_ro("capacities", &capacities)
      .def_prop_ro("bytes",
                   [](State& state) {
                     const State::ExclusiveUse use(state);
                     return state.bytes();
                   })
      .def("__len__",
           [](State& state) {
             const State::ExclusiveUse use(state);
             return state.size();
           })
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
  bind_questions(module);
  nb::class_<Model>(module, "Model")
      .def("__init__", &build, "model"_a, "weights"_a, "drafter"_a.none(), "ctc"_a.none(),
           "instruction_set"_a, "threads"_a)
      .def_prop_ro("instruction_set", &Model::instruction_set)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("bytes", [](const Model& model) { return model.weights().bytes(); })
      .def_prop_ro("embedding_bytes", &Model::embedding_bytes)
      .def_prop_ro("mapped", [](const Model& model) { return model.weights().mapped(); })
      .def("save", &save, "path"_a, "about"_a)
      .def_prop_ro("idle_bytes",
                   [](const Model& model) { return sizeof(float) * model.buffer_pool()->held(); })
      .def("encode", &encode, "sources"_a, "capacities"_a, "drafting"_a, "parallel"_a,
           "words"_a = Tokens{})
      .def("extend", &extend, "state"_a, "tokens"_a, "last"_a)
      .def("cross_attention", &cross_attention, "state"_a, "tokens"_a)
      .def("likeliest", &likeliest, "state"_a, "tokens"_a, "forbidden"_a, "by_row"_a,
           "ends"_a, "early"_a)
      .def("greedy", &greedy, "state"_a, "newest"_a, "steps"_a, "ends"_a, "forbidden"_a)
      .def("answer", &answer, "state"_a, "tokens"_a, "questions"_a, "last"_a)
      .def("draft_and_verify", &draft_and_verify, "state"_a, "held"_a, "last"_a, "counts"_a,
           "min_survival"_a, "text_ends"_a, "forbidden"_a, "by_row"_a, "ends"_a, "early"_a,
           "log_probs"_a)
      .def("draft", &draft, "state"_a, "last"_a, "counts"_a, "temperatures"_a, "uniform"_a,
           "known"_a)
      .def("ctc", &ctc, "state"_a, "known"_a.noconvert().none());
}
