// What Python says of a model, read key by key: what is missing or out of range is named.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "binding.h"

namespace outrider {
namespace {

Activation to_activation(const std::string& name) {
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  throw std::invalid_argument("activation '" + name + "' is not computed here");
}

Position to_position(const std::string& name) {
  if (name == "none") return Position::none;
  if (name == "sinusoidal") return Position::sinusoidal;
  if (name == "learned") return Position::learned;
  if (name == "rotary") return Position::rotary;
  if (name == "bucketed") return Position::bucketed;
  throw std::invalid_argument("position '" + name + "' is not computed here");
}

bool is_recurrent(const std::string& core) {
  if (core == "attention" || core == "ssru") return core == "ssru";
  throw std::invalid_argument("core '" + core + "' is not computed here");
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

void check_frequencies(const ModelSpec& spec) {
  const std::size_t pairs = spec.position == Position::rotary ? spec.head_dim / 2 : 0;
  if (spec.frequencies.size() != pairs || (pairs > 0 && spec.head_dim % 2 != 0))
    throw std::invalid_argument("frequencies are not one for each pair of a head");
  for (const double one : spec.frequencies)
    if (!std::isfinite(one)) throw std::invalid_argument("a frequency is not finite");
}

Buckets read_buckets(const nb::dict& values, const char* key, bool two_sided) {
  constexpr std::size_t kMost = 1 << 16;
  const Buckets buckets{get<std::vector<int>>(values, key), two_sided};
  if (buckets.edges.size() > kMost)
    throw std::invalid_argument(std::string(key) + " are too many");
  for (std::size_t n = 0; n < buckets.edges.size(); ++n)
    if (buckets.edges[n] < (n == 0 ? 1 : buckets.edges[n - 1]))
      throw std::invalid_argument(std::string(key) + " are not in order");
  return buckets;
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

}  // namespace

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
  spec.recurrent = is_recurrent(get<std::string>(values, "core"));
  spec.position = to_position(get<std::string>(values, "position"));
  spec.activation = to_activation(get<std::string>(values, "activation"));
  spec.precision = to_precision(get<std::string>(values, "dtype"));
  spec.head_dim = positive(values, "head_width");
  spec.norm.rms = get<bool>(values, "rms_norm");
  spec.norm.epsilon = get<float>(values, "norm_eps");
  if (!(spec.norm.epsilon >= 0.0f) || !std::isfinite(spec.norm.epsilon))
    throw std::invalid_argument("norm_eps is not a number above zero");
  spec.embedding_norm = get<bool>(values, "embedding_norm");
  spec.frequencies = get<std::vector<double>>(values, "frequencies");
  spec.encoder_buckets = read_buckets(values, "encoder_edges", true);
  spec.decoder_buckets = read_buckets(values, "decoder_edges", false);
  if (spec.heads % spec.kv_heads != 0 || spec.head_dim > (1 << 24) / spec.heads)
    throw std::invalid_argument("keys do not divide the heads, or these are too wide");
  if (spec.recurrent && spec.heads * spec.head_dim != spec.width)
    throw std::invalid_argument("recurrent heads do not divide the width");
  check_frequencies(spec);
  if (spec.width % 2 != 0) throw std::invalid_argument("width must be even");
  return spec;
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

}  // namespace outrider
