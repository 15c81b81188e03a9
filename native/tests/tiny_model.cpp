#include "tiny_model.h"

#include <cmath>
#include <numeric>

namespace outrider {
namespace {

// Fills the arrays of a model with numbers of the magnitude of trained weights.
class Filler {
 public:
  Filler(TinyModel& model, Dice& dice) : model_(model), dice_(dice) {}

  void array(const std::string& name, std::vector<int> shape, float width) {
    std::size_t size = 1;
    for (int n : shape) size *= static_cast<std::size_t>(n);
    model_.arrays[name] = {std::move(shape), dice_.normals(size, width)};
  }

  void rotation(const std::string& name, int width) {
    model_.arrays[name] = {{width, width}, random_rotation(dice_, width)};
  }

  void linear(const std::string& name, int columns, int width, bool bias = true) {
    array(name + ".weight", {columns, width}, 1.0f / std::sqrt(static_cast<float>(width)));
    if (bias) array(name + ".bias", {columns}, 0.1f);
  }

  void norm(const std::string& name, NormKind kind = {}) {
    const int width = model_.spec.width;
    array(name + ".weight", {width}, 0.1f);
    for (float& x : model_.arrays[name + ".weight"].second) x += 1.0f;
    if (!kind.rms) array(name + ".bias", {width}, 0.1f);
  }

  void stack(const std::string& name, int layers, const LayerShape& shape) {
    for (int layer = 0; layer < layers; ++layer) {
      const std::string block = name + ".blocks." + std::to_string(layer);
      if (shape.recurrent) {
        linear(block + ".attention.into", 2 * shape.width, shape.width);
      } else {
        linear(block + ".attention.qkv", shape.qkv_width(), shape.width);
        linear(block + ".attention.out", shape.width, shape.heads_width());
      }
      norm(block + ".attention_residual.norm", shape.norm);
      linear(block + ".feedforward.up", shape.up_width(), shape.width);
      linear(block + ".feedforward.down", shape.width, shape.inner);
      norm(block + ".feedforward_residual.norm", shape.norm);
      if (!shape.cross) continue;
      linear(block + ".cross.q", shape.heads_width(), shape.width);
      linear(block + ".cross.kv", 2 * shape.heads_width(), shape.width);
      linear(block + ".cross.out", shape.width, shape.heads_width());
      norm(block + ".cross_residual.norm", shape.norm);
    }
    if (shape.pre_norm) norm(name + ".norm", shape.norm);
  }

 private:
  TinyModel& model_;
  Dice& dice_;
};

LayerShape shape_of(int width, int heads, int kv_heads, int inner, bool pre_norm, bool gated,
                    bool cross) {
  LayerShape shape;
  shape.width = width;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_width = width / heads;
  shape.inner = inner;
  shape.pre_norm = pre_norm;
  shape.gated = gated;
  shape.cross = cross;
  return shape;
}

Activation random_activation(Dice& dice) {
  return dice.one_of({Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu});
}

ModelSpec random_spec(Dice& dice, Precision precision) {
  ModelSpec spec;
  spec.vocab_size = dice.chance(0.3) ? dice.pick(61, 400) : dice.pick(5, 60);
  spec.heads = dice.pick(1, 4);
  spec.kv_heads = dice.chance(0.3) ? 1 : spec.heads;
  spec.width = spec.heads * 2 * dice.pick(1, 9);
  spec.inner = dice.pick(1, 80);
  spec.encoder_layers = dice.chance(0.7) ? dice.pick(1, 2) : 0;
  spec.decoder_layers = dice.pick(1, 3);
  spec.max_positions = 64;
  spec.embedding_scale = dice.chance(0.5) ? std::sqrt(static_cast<float>(spec.width)) : 1.0f;
  spec.pre_norm = dice.chance(0.5);
  spec.gated = dice.chance(0.3);
  spec.shared_embeddings = spec.encoder_layers == 0 || dice.chance(0.7);
  spec.recurrent = dice.chance(0.25);
  spec.position = dice.one_of({Position::none, Position::sinusoidal, Position::learned,
                               Position::rotary, Position::bucketed});
  spec.head_width =
      spec.recurrent || dice.chance(0.6) ? spec.width / spec.heads : 2 * dice.pick(1, 9);
  spec.norm = {dice.chance(0.4), dice.chance(0.5) ? 1e-5f : 0.01f};
  spec.embedding_norm = dice.chance(0.3);
  if (spec.position == Position::rotary)
    for (int k = 0; k < spec.head_width / 2; ++k)
      spec.frequencies.push_back(std::pow(50.0, -2.0 * k / spec.head_width));
  if (spec.position == Position::bucketed) {
    spec.encoder_buckets = {{1, 2, 5}, true};
    spec.decoder_buckets = {{1, 2, 3, 4, 6, 9, 13}, false};
  }
  spec.activation = random_activation(dice);
  spec.precision = precision;
  return spec;
}

void fill_model(Filler& filler, Dice& dice, const TinyModel& model) {
  const ModelSpec& spec = model.spec;
  const int vocab_size = spec.vocab_size, width = spec.width;
  LayerShape shape =
      shape_of(width, spec.heads, spec.kv_heads, spec.inner, spec.pre_norm, spec.gated, false);
  shape.head_width = spec.head_width;
  shape.norm = spec.norm;
  if (model.has_encoder()) filler.stack("encoder", spec.encoder_layers, shape);
  shape.cross = model.has_encoder();
  shape.recurrent = spec.recurrent;
  filler.stack("decoder", spec.decoder_layers, shape);
  filler.array("tokens.weight", {vocab_size, width}, 1.0f / spec.embedding_scale);
  if (!spec.shared_embeddings) filler.array("source_tokens.weight", {vocab_size, width}, 1.0f);
  if (dice.chance(0.5)) filler.array("head.weight", {vocab_size, width}, 0.5f);
  if (dice.chance(0.5)) filler.array("logits_bias", {vocab_size}, 0.3f);
  if (dice.chance(0.5)) filler.rotation("head.rotation.weight", width);
  for (const std::string side : {"encoder", "decoder"}) {
    const Buckets& buckets = side == "encoder" ? spec.encoder_buckets : spec.decoder_buckets;
    if (spec.embedding_norm) filler.norm(side + "_embedding_norm", spec.norm);
    if (spec.position == Position::bucketed)
      filler.array(side + ".bias.table.weight", {buckets.count(), spec.heads}, 1.0f);
  }
  if (spec.position != Position::learned) return;
  filler.array("decoder_position.table.weight", {spec.max_positions, width}, 0.3f);
  filler.array("encoder_position.table.weight", {spec.max_positions, width}, 0.3f);
}

// Many similar tokens, which four bits cannot distinguish.
void crowd_head(Filler& filler, Dice& dice, TinyModel& model) {
  const int vocab_size = model.spec.vocab_size, width = model.spec.width;
  filler.array("head.weight", {vocab_size, width}, dice.one_of({0.001f, 0.01f, 0.1f}));
  filler.rotation("head.rotation.weight", width);
  model.arrays.erase("logits_bias");
  const std::vector<float> common = dice.normals(static_cast<std::size_t>(width));
  std::vector<float>& weight = model.arrays["head.weight"].second;
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] += common[i % common.size()];
}

DrafterSpec random_drafter(Dice& dice, const ModelSpec& target) {
  DrafterSpec spec;
  spec.layers = dice.pick(1, 2);
  spec.heads = target.heads;
  spec.inner = dice.pick(1, 40);
  spec.block = dice.pick(1, 8);
  spec.rank = dice.chance(0.4) ? 0 : dice.pick(1, 20);
  spec.candidates = dice.pick(1, 20);
  spec.pre_norm = dice.chance(0.5);
  spec.gated = dice.chance(0.3);
  spec.activation = random_activation(dice);
  spec.taps = {0};
  if (target.decoder_layers > 1) spec.taps.push_back(target.decoder_layers - 1);
  if (dice.chance(0.4))
    for (int token = 0; token < target.vocab_size; token += 2) spec.shortlist.push_back(token);
  return spec;
}

void fill_drafter(Filler& filler, const TinyModel& model) {
  const DrafterSpec& spec = *model.drafter;
  const int width = model.spec.width, vocab_size = model.spec.vocab_size, rank = spec.rank;
  const int tapped = width * static_cast<int>(spec.taps.size());
  const int listed = spec.shortlist.empty() ? vocab_size : static_cast<int>(spec.shortlist.size());
  filler.stack("drafter", spec.layers,
               shape_of(width, spec.heads, spec.heads, spec.inner, spec.pre_norm, spec.gated,
                        model.has_encoder()));
  filler.norm("drafter.norm");
  for (std::size_t tap = 0; tap < spec.taps.size(); ++tap)
    filler.norm("drafter.state_norms." + std::to_string(tap));
  for (int layer = 0; layer < spec.layers; ++layer)
    filler.linear("drafter.inject." + std::to_string(layer), 2 * width, tapped);
  filler.linear("drafter.from_last", width, tapped);
  filler.array("drafter.mask", {width}, 1.0f);
  filler.array("drafter.slot.weight", {spec.block, width}, 1.0f);
  filler.linear("drafter.confidence", 1, width + rank);
  filler.linear("drafter.head", listed, width);
  if (rank == 0) return;
  filler.linear("drafter.from_slot", rank, width);
  filler.linear("drafter.from_state", rank, rank, false);
  filler.array("drafter.out", {listed, rank}, 0.5f);
  filler.array("drafter.token", {vocab_size, rank}, 0.5f);
}

CtcSpec random_ctc(Dice& dice, const ModelSpec& target) {
  CtcSpec spec;
  spec.layers = dice.pick(1, 2);
  spec.heads = target.heads;
  spec.inner = dice.pick(1, 40);
  spec.upsample = dice.pick(1, 3);
  spec.pre_norm = dice.chance(0.5);
  spec.gated = dice.chance(0.3);
  spec.activation = random_activation(dice);
  return spec;
}

void fill_ctc(Filler& filler, const TinyModel& model) {
  const CtcSpec& spec = *model.ctc;
  const int width = model.spec.width;
  filler.stack(
      "ctc.decoder", spec.layers,
      shape_of(width, spec.heads, spec.heads, spec.inner, spec.pre_norm, spec.gated, false));
  filler.array("ctc.copies", {spec.upsample, width}, 0.3f);
  filler.linear("ctc.told", width, width, false);
  filler.array("ctc.bias", {model.spec.vocab_size}, 0.3f);
}

}  // namespace

std::vector<float> random_rotation(Dice& dice, int width) {
  const auto n = static_cast<std::size_t>(width);
  std::vector<std::vector<double>> rows;
  std::vector<float> out;
  while (rows.size() < n) {
    const std::vector<float> drawn = dice.normals(n);
    std::vector<double> row(drawn.begin(), drawn.end());
    for (int twice = 0; twice < 2; ++twice)
      for (const std::vector<double>& other : rows) {
        const double along = std::inner_product(row.begin(), row.end(), other.begin(), 0.0);
        for (std::size_t k = 0; k < n; ++k) row[k] -= along * other[k];
      }
    const double length = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
    for (double& x : row) x /= length;
    out.insert(out.end(), row.begin(), row.end());
    rows.push_back(std::move(row));
  }
  return out;
}

Weights TinyModel::weights() const {
  Weights weights;
  for (const auto& [name, array] : arrays)
    weights.insert({name, array.second.data(), NumberType::float32, array.first});
  return weights;
}

std::unique_ptr<Engine> TinyModel::build(const std::string& instruction_set, int threads) const {
  return std::make_unique<Engine>(
      Model(std::make_shared<PackedWeights>(weights()), spec, drafter, ctc, instruction_set),
      threads);
}

TinyModel random_model(Dice& dice, Precision precision, bool crowded) {
  TinyModel model;
  model.spec = random_spec(dice, precision);
  if (crowded) model.spec.vocab_size = dice.pick(500, 4000);
  Filler filler(model, dice);
  fill_model(filler, dice, model);
  if (crowded) crowd_head(filler, dice, model);
  model.drafter = random_drafter(dice, model.spec);
  fill_drafter(filler, model);
  if (model.has_encoder()) {
    model.ctc = random_ctc(dice, model.spec);
    fill_ctc(filler, model);
  }
  return model;
}

}  // namespace outrider
