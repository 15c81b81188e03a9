#include "model.h"

#include <algorithm>
#include <stdexcept>

namespace outrider {

LayerShape ModelSpec::layer_shape() const {
  LayerShape shape;
  shape.width = width;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_width = head_width;
  shape.inner = inner;
  shape.pre_norm = pre_norm;
  shape.gated = gated;
  shape.rotary = position == Position::rotary;
  shape.norm = norm;
  shape.activation = activation;
  shape.precision = precision;
  return shape;
}

Model::Model(std::shared_ptr<PackedWeights> packed, const ModelSpec& model_spec,
             const std::optional<DrafterSpec>& drafter_spec, const std::optional<CtcSpec>& ctc_spec,
             const std::string& instruction_set)
    : weights(std::move(packed)), spec(model_spec), kernel(find_kernel(instruction_set)) {
  const int vocab_size = spec.vocab_size, width = spec.width;
  weights->verify();
  LayerShape shape = spec.layer_shape();
  if (spec.has_encoder()) {
    encoder = Stack(*weights, "encoder", spec.encoder_layers, shape);
    shape.cross = true;
  }
  shape.recurrent = spec.recurrent;
  decoder = Stack(*weights, "decoder", spec.decoder_layers, shape);
  read_input("decoder", spec.decoder_buckets, input);
  if (spec.has_encoder()) read_input("encoder", spec.encoder_buckets, source_input);
  input.tokens = TokenTable(*weights, "tokens.weight", vocab_size, width);
  source_input.tokens = spec.shared_embeddings
                            ? input.tokens
                            : TokenTable(*weights, "source_tokens.weight", vocab_size, width);
  if (spec.position == Position::learned) {
    const std::vector<int> table{spec.max_positions, width};
    input.positions = weights->floats("decoder_position.table.weight", table);
    if (spec.has_encoder())
      source_input.positions = weights->floats("encoder_position.table.weight", table);
  }
  if (Weights* arrays = weights->arrays()) {
    arrays->tie("head.weight", "tokens.weight");
    arrays->tie("head.bias", "logits_bias");
  }
  const bool biased = weights->has("head.bias");
  head = Matrix(*weights, "head", vocab_size, width, spec.precision, biased);
  if (spec.precision == Precision::int8 && kernel.nibbles && Screen::available(*weights, "head"))
    screen = Screen(*weights, kernel, "head", vocab_size, width, biased);
  if (drafter_spec) {
    // A drafter uses rotary positions where the target's embeddings contain no positions.
    shape.rotary = spec.position == Position::rotary || spec.position == Position::bucketed;
    drafter.emplace(*weights, *drafter_spec, shape, vocab_size);
  }
  if (ctc_spec) {
    LayerShape slots = ctc_spec->shape(spec.layer_shape());
    slots.rotary = false;  // slots have sinusoidal positions
    ctc.emplace(Ctc{*ctc_spec, Stack(*weights, "ctc.decoder", ctc_spec->layers, slots),
                    weights->floats("ctc.copies", {ctc_spec->upsample, width}),
                    Matrix(*weights, "ctc.told", width, width, spec.precision, false),
                    head.with_bias(*weights, "ctc.bias")});
  }
  weights->release_arrays();
}

void Model::read_input(const std::string& side, const Buckets& buckets,
                       InputEmbeddings& out) const {
  if (spec.embedding_norm)
    out.norm = Norm(*weights, side + "_embedding_norm", spec.width, spec.norm);
  if (spec.position == Position::bucketed)
    out.bias = weights->floats(side + ".bias.table.weight", {buckets.count(), spec.heads});
}

std::size_t Model::embedding_bytes() const {
  return input.tokens.bytes() + (spec.shared_embeddings ? 0 : source_input.tokens.bytes());
}

void Model::check_token(int token) const {
  if (token < 0 || token >= spec.vocab_size)
    throw std::invalid_argument("token " + std::to_string(token) + " is not one of the " +
                                std::to_string(spec.vocab_size) + " tokens of this model");
}

void Model::check_tokens(const std::vector<int>& tokens) const {
  for (int token : tokens) check_token(token);
}

void Model::embed_token(const InputEmbeddings& from, int token, float* out) const {
  from.tokens.read(token, spec.embedding_scale, out);
}

void Model::embed(ForwardPass& pass, const InputEmbeddings& from, const SineTable* sines) const {
  for (int r = 0; r < pass.count; ++r)
    embed_token(from, pass.rows[r].token, pass.own.stream.data() + area(r, spec.width));
  add_positions(pass, from, sines);
  if (from.norm.weight.empty()) return;
  for (int r = 0; r < pass.count; ++r) {
    float* x = pass.own.stream.data() + area(r, spec.width);
    from.norm.run(kernel, x, x);
  }
}

void Model::add_positions(ForwardPass& pass, const InputEmbeddings& from,
                          const SineTable* sines) const {
  const int width = spec.width;
  for (int r = 0; r < pass.count; ++r) {
    float* x = pass.own.stream.data() + area(r, width);
    const int position = pass.rows[r].position;
    if (spec.position == Position::sinusoidal)
      kernel.rows->add(x, sines->row(position), width);
    else if (spec.position == Position::learned)
      kernel.rows->add(x, from.positions.data() + area(position, width), width);
  }
}

}  // namespace outrider
