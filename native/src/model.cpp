#include "model.h"

#include "run.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {
std::unique_ptr<Model::Scratch> Model::acquire_scratch() {
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

void Model::release_scratch(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex());
  idle_.push_back(std::move(scratch));
}

LayerShape Model::layer_shape() const {
  LayerShape shape;
  shape.width = spec_.width;
  shape.heads = spec_.heads;
  shape.kv_heads = spec_.kv_heads;
  shape.inner = spec_.inner;
  shape.pre_norm = spec_.pre_norm;
  shape.gated = spec_.gated;
  shape.rotary = spec_.position == Position::rotary;
  shape.head_dim = spec_.head_dim;
  shape.norm = spec_.norm;
  shape.activation = spec_.activation;
  shape.precision = spec_.precision;
  return shape;
}

Model::Model(std::shared_ptr<PackedWeights> weights, const ModelSpec& spec,
             const std::optional<DrafterSpec>& drafter, const std::optional<CtcSpec>& ctc,
             const std::string& instruction_set, int threads)
    : weights_(std::move(weights)),
      spec_(spec),
      kernel_(find_kernel(instruction_set)),
      sines_(usual_frequencies(spec.width)),
      angles_(spec.frequencies),
      drafter_angles_(usual_frequencies(drafter ? spec.width / drafter->heads : 2)),
      team_(threads) {
  const int words = spec.words, width = spec.width;
  PackedWeights& packed = *weights_;
  packed.verify();
  LayerShape shape = layer_shape();
  if (spec.encoder_layers > 0) {
    encoder_ = Stack(packed, "encoder", spec.encoder_layers, shape);
    shape.cross = true;
  }
  shape.recurrent = spec.recurrent;
  decoder_ = Stack(packed, "decoder", spec.decoder_layers, shape);
  read_stack_parts("decoder", spec.decoder_buckets, embedding_norm_, decoder_biases_);
  if (spec.encoder_layers > 0)
    read_stack_parts("encoder", spec.encoder_buckets, source_embedding_norm_, encoder_biases_);
  tokens_ = Embeddings(packed, "tokens.weight", words, width);
  if (!spec.shared_embeddings)
    source_tokens_ = Embeddings(packed, "source_tokens.weight", words, width);
  if (spec.position == Position::learned) {
    position_table_ = packed.floats("decoder_position.table.weight", {spec.max_positions, width});
    if (spec.encoder_layers > 0)
      source_position_table_ =
          packed.floats("encoder_position.table.weight", {spec.max_positions, width});
  }
  if (Weights* arrays = packed.arrays()) {
    arrays->tie("head.weight", "tokens.weight");
    arrays->tie("head.bias", "logits_bias");
  }
  const bool biased = packed.has("head.bias");
  head_ = Matrix(packed, "head", words, width, spec.precision, biased);
  if (spec.precision == Precision::int8 && kernel_.nibbles && Screen::is_there(packed, "head"))
    screen_ = Screen(packed, kernel_, "head", words, width, biased);
  if (drafter) {
    // Where the target's embeddings say nothing of positions, a drafter turns its keys.
    shape.rotary = spec.position == Position::rotary || spec.position == Position::bucketed;
    drafter_.emplace(packed, *drafter, shape, words);
  }
  if (ctc) {
    LayerShape parallel = ctc->shape(layer_shape());
    parallel.rotary = false;  // it adds sines to its slots
    ctc_.emplace(Ctc{*ctc, Stack(packed, "ctc.decoder", ctc->layers, parallel),
                     packed.floats("ctc.copies", {ctc->upsample, width}),
                     Matrix(packed, "ctc.told", width, width, spec.precision, false),
                     head_.with_bias(packed, "ctc.bias")});
  }
  packed.release_arrays();
}

Model::~Model() = default;

void Model::read_stack_parts(const std::string& side, const Buckets& buckets, Norm& norm,
                             OffsetBiases& biases) {
  if (spec_.embedding_norm)
    norm = Norm(*weights_, side + "_embedding_norm", spec_.width, spec_.norm);
  if (spec_.position != Position::bucketed) return;
  const std::string name = side + ".bias.table.weight";
  biases = OffsetBiases(buckets, weights_->floats(name, {buckets.count(), spec_.heads}),
                        spec_.heads);
}

void Model::check_state(const State& state) const {
  if (state.owner != pool_) throw std::invalid_argument("this is a state of another model");
}

void Model::check_token(int token) const {
  if (token < 0 || token >= spec_.words)
    throw std::invalid_argument("token " + std::to_string(token) + " is not one of the " +
                                std::to_string(spec_.words) + " this model has");
}

void Model::check_tokens(const std::vector<int>& tokens) const {
  for (int token : tokens) check_token(token);
}

void Model::embed_token(const Embeddings& table, int token, float* out) const {
  table.read(token, spec_.embedding_scale, out);
}

void Model::embed(ForwardPass& pass, const Embeddings& table,
                  std::span<const float> position_table, const SineTable* sines,
                  const Norm& norm) const {
  for (int r = 0; r < pass.count; ++r)
    embed_token(table, pass.rows[r].token, pass.own.stream.data() + area(r, spec_.width));
  add_positions(pass, position_table, sines);
  if (norm.weight.empty()) return;
  for (int r = 0; r < pass.count; ++r) {
    float* x = pass.own.stream.data() + area(r, spec_.width);
    norm.run(kernel_, x, x);
  }
}

void Model::add_positions(ForwardPass& pass, std::span<const float> position_table,
                          const SineTable* sines) const {
  const int width = spec_.width;
  for (int r = 0; r < pass.count; ++r) {
    float* x = pass.own.stream.data() + area(r, width);
    const int position = pass.rows[r].position;
    if (spec_.position == Position::sinusoidal)
      kernel_.rows->add(x, sines->row(position), width);
    else if (spec_.position == Position::learned)
      kernel_.rows->add(x, position_table.data() + area(position, width), width);
  }
}

CacheViews Model::view(const State& state, KvCache Caches::* part) {
  CacheViews views;
  for (const auto& sequence : state.sequences) {
    views.caches.push_back(&((*sequence).*part));
    if (sequence->source) views.add((*sequence->source).*part, sequence->source->length);
  }
  return views;
}

}  // namespace outrider
