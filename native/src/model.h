// The weights of a model, immutable once loaded, and its input embeddings.
#pragma once

#include "drafter.h"
#include "screen.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace outrider {

enum class Position { none, sinusoidal, learned, rotary, bucketed };

struct ModelSpec {
  int vocab_size = 0;
  int width = 0, heads = 0, kv_heads = 0, head_width = 0, inner = 0;
  int encoder_layers = 0, decoder_layers = 0;  // a language model has no encoder layers
  int max_positions = 0;
  float embedding_scale = 1.0f;
  bool pre_norm = false, gated = false, shared_embeddings = true;
  NormKind norm;
  bool embedding_norm = false;
  std::vector<double> frequencies;           // of rotary positions
  Buckets encoder_buckets, decoder_buckets;  // of bucketed positions
  bool recurrent = false;                    // SSRUs instead of self-attention in the decoder
  Position position = Position::sinusoidal;
  Activation activation = Activation::relu;
  Precision precision = Precision::int8;

  bool has_encoder() const { return encoder_layers > 0; }
  LayerShape layer_shape() const;
};

struct CtcSpec : SideDecoderSpec {
  int upsample = 0;  // slots of each source token
};

// A decoder that scores all slots of a text at once (equations in models/ctc.py).
struct Ctc {
  CtcSpec spec;
  Stack stack;
  std::span<const float> copies;  // [upsample][width]
  Matrix known, head;
};

// Token embeddings in the smallest type that holds them exactly; int8 is kept as it is.
class TokenTable {
 public:
  TokenTable() = default;
  TokenTable(PackedWeights& weights, const std::string& name, int vocab_size, int width)
      : table_(weights.table(name, {vocab_size, width})), width_(static_cast<std::size_t>(width)) {}

  // Writes the embedding of a token, times `scale`.
  void read(int token, float scale, float* out) const {
    const auto& [type, bytes] = table_.numbers;
    const auto row = static_cast<std::size_t>(token);
    widen(bytes.data() + row * width_ * size_of(type), type, width_, out);
    if (type == NumberType::int8)
      for (std::size_t k = 0; k < width_; ++k) out[k] *= table_.scales[row];
    for (std::size_t k = 0; k < width_; ++k) out[k] *= scale;
  }
  std::size_t bytes() const { return table_.numbers.bytes.size() + table_.scales.size_bytes(); }

 private:
  PackedTable table_;
  std::size_t width_ = 0;
};

// The inputs of the encoder or of the decoder.
struct InputEmbeddings {
  TokenTable tokens;
  std::span<const float> positions;  // learned, [max_positions][width]
  std::span<const float> bias;       // of bucketed positions, [buckets][heads]
  Norm norm;                         // empty unless embeddings are normalised
};

struct Model {
  Model(std::shared_ptr<PackedWeights> packed, const ModelSpec& model_spec,
        const std::optional<DrafterSpec>& drafter_spec, const std::optional<CtcSpec>& ctc_spec,
        const std::string& instruction_set);

  int candidates() const { return drafter ? drafter->candidates() : 0; }
  int upsample() const { return ctc ? ctc->spec.upsample : 0; }
  std::size_t embedding_bytes() const;

  // Throws std::invalid_argument for a token outside the vocabulary.
  void check_token(int token) const;
  void check_tokens(const std::vector<int>& tokens) const;

  void embed_token(const InputEmbeddings& from, int token, float* out) const;
  // Writes the embeddings of a pass's tokens to the residual stream.
  void embed(ForwardPass& pass, const InputEmbeddings& from, const SineTable* sines) const;
  // Adds sinusoidal or learned positions to the residual stream.
  void add_positions(ForwardPass& pass, const InputEmbeddings& from, const SineTable* sines) const;

  std::shared_ptr<PackedWeights> weights;  // the other members point into them
  ModelSpec spec;
  const Kernel& kernel;
  Stack encoder, decoder;
  InputEmbeddings source_input, input;
  Matrix head;
  Screen screen;  // of a large head, else empty
  std::optional<Drafter> drafter;
  std::optional<Ctc> ctc;

 private:
  void read_input(const std::string& side, const Buckets& buckets, InputEmbeddings& out) const;
};

}  // namespace outrider
