// One Transformer layer, and several of them one after another.
#pragma once

#include "kv_cache.h"
#include "matrix.h"
#include "offset_bias.h"
#include "positions.h"
#include "screen.h"
#include "team.h"

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace outrider {

inline std::size_t area(int rows, int width) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
}

// A token on its way through the layers (one row of every product).
struct Row {
  int sequence = 0;
  int token = 0;
  int position = 0;  // where it stands in its sequence, and where its key is kept
  int visible = 0;   // how many keys it attends to
};

// Activations that the workers of a pass share, [rows][..]: each writes its own columns and, after
// a barrier, reads those of all (layer.cpp says which barrier stands between).
struct SharedBuffers {
  Buffer<float> projected;         // queries, keys and values, or inputs and gates, as they come
  Buffer<float> context;           // what attention gives, before the output projection
  Buffer<float> ffn_inner;         // the feed-forward between its two products
  Buffer<float> sublayer_out;      // what a sublayer adds to the residual stream
  Buffer<float> draft_logits;      // of the drafter's head
  Buffer<int> candidates;          // [rows][candidates]: columns of the best of them,
  Buffer<float> candidate_scores;  // and their logits
  Buffer<float> scores;            // of the model's head, where questions are asked
};

// Buffers of one worker. Each keeps the whole residual stream: computing a norm twice is cheaper
// than waiting.
struct WorkerBuffers {
  Buffer<float> stream, normed, tapped_states, attention_scores, logits;
  Buffer<float> best;     // scores of tokens in order,
  Buffer<int> order;      // and those tokens
  Buffer<double> masses;  // that are drawn from
  Operand operand;
  ScreenBuffers screen;
  std::vector<AttentionQuery> queries;
};

// Columns of a product that belong to parts, heads for one: `width` for each, one after another.
struct Section {
  int start = 0, width = 0;
};

// Where the rows of a call looked, for who asks: weights of cross-attention, [row][layer][head][key].
struct CrossWeights {
  float* data = nullptr;
  const Row* rows = nullptr;  // all of the call
  int layers = 0, heads = 0, keys = 0;

  float* of(const Row* row, int layer, int head) const {
    return data + ((row - rows) * layers + layer) * static_cast<std::ptrdiff_t>(heads) * keys +
           static_cast<std::ptrdiff_t>(head) * keys;
  }
};

// Some rows on their way through some layers, as one worker sees it.
struct ForwardPass {
  const Kernel& kernel;
  Worker worker;
  const Row* rows;
  int count;
  SharedBuffers& shared;
  WorkerBuffers& own;
  const std::vector<KvCache*>* caches = nullptr;               // of each sequence
  const std::vector<const KvCache*>* source_caches = nullptr;  // for cross-attention
  const std::vector<int>* source_lengths = nullptr;
  const SineTable* angles = nullptr;  // for rotary positions
  const OffsetBias* bias = nullptr;   // of the scores of self-attention
  const CrossWeights* cross_weights = nullptr;  // null where nobody asks

  // Multiplies what the operand holds and writes this worker's share of the columns.
  void multiply(const Matrix& matrix, float* out);
  // The same where the columns belong to parts, and a worker goes on with its own parts alone: then
  // nobody need wait. Where parts cannot be dealt out like that, all wait. Returns its parts.
  Range multiply_parts(const Matrix& matrix, int parts, std::initializer_list<Section> sections,
                       float* out);
};

// Which norm the parts of a model have.
struct NormKind {
  bool rms = false;
  float epsilon = 1e-5f;
};

struct Norm {
  std::span<const float> weight, bias;
  NormKind kind;

  Norm() = default;
  Norm(PackedWeights& weights, const std::string& name, int width, NormKind norm_kind = {})
      : weight(weights.floats(name + ".weight", {width})), kind(norm_kind) {
    if (!kind.rms) bias = weights.floats(name + ".bias", {width});
  }

  void run(const Kernel& kernel, const float* x, float* out) const {
    const int width = static_cast<int>(weight.size());
    if (kind.rms)
      kernel.rows->rms_norm(x, width, weight.data(), kind.epsilon, out);
    else
      kernel.rows->layer_norm(x, width, weight.data(), bias.data(), kind.epsilon, out);
  }
};

struct LayerShape {
  int width = 0, heads = 0, kv_heads = 0, inner = 0;
  bool pre_norm = false, gated = false, cross = false, rotary = false;
  bool recurrent = false;  // an SSRU in the place of self-attention
  int head_dim = 0;  // width of a head; 0 for the width divided by the heads
  NormKind norm;
  Activation activation = Activation::relu;
  Precision precision = Precision::int8;

  int head_width() const { return head_dim > 0 ? head_dim : width / heads; }
  int heads_width() const { return heads * head_width(); }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_width(); }
  int up_width() const { return gated ? 2 * inner : inner; }
};

// The layers of a side decoder, which reads a model's states: a drafter, or a CTC decoder.
struct SideDecoderSpec {
  int layers = 0, heads = 0, inner = 0;
  bool pre_norm = false, gated = false;
  Activation activation = Activation::relu;

  // The shape of its layers, which are as wide as the target's.
  LayerShape shape(LayerShape target) const {
    target.heads = target.kv_heads = heads;
    target.inner = inner;
    target.pre_norm = pre_norm;
    target.gated = gated;
    target.activation = activation;
    target.recurrent = false;
    target.head_dim = 0;
    target.norm = {};
    return target;
  }
};

class Layer {
 public:
  Layer(PackedWeights& weights, const std::string& name, const LayerShape& shape);

  // Runs the rows of a pass; their keys and values go to layer `index` of the KV caches.
  void run(ForwardPass& pass, int index) const;
  // Writes the keys and values of cross-attention; the operand of the pass holds the encoder's
  // output.
  void write_cross_kv(ForwardPass& pass, int index, const std::vector<KvCache*>& sources) const;

  const LayerShape& shape() const { return shape_; }

 private:
  void attend(ForwardPass& pass) const;
  void self_attention(ForwardPass& pass, int index) const;
  void recurrence(ForwardPass& pass, int index) const;
  void cross_attention(ForwardPass& pass, int index) const;
  // Writes down where the queries of a pass look, which are those of some heads, one by one.
  void record_weights(ForwardPass& pass, int index, Range heads) const;
  void feed_forward(ForwardPass& pass) const;
  // Norms the residual stream (if norms come first) and loads it as the operand.
  void load_sublayer_input(ForwardPass& pass, const Norm& norm) const;
  // Adds `sublayer_out` to the residual stream, and norms that (if norms come last).
  void add_to_residual(ForwardPass& pass, const Norm& norm) const;
  void project_output(ForwardPass& pass, const Matrix& matrix, const Buffer<float>& from,
                      int width) const;

  LayerShape shape_;
  Matrix qkv_, out_, into_, cross_q_, cross_kv_, cross_out_, up_, down_;
  Norm attention_norm_, cross_norm_, feedforward_norm_;
};

class Stack {
 public:
  Stack() = default;
  // `name` holds blocks.0, blocks.1 ...; a stack of pre-norm layers ends with a norm of its own.
  Stack(PackedWeights& weights, const std::string& name, int layers, const LayerShape& shape);

  // Calls `after_layer` with the index of each layer, once the residual stream has left it.
  void run(ForwardPass& pass, const std::function<void(int)>& after_layer = nullptr) const;
  // The same where no later call reads the keys and values: all layers use layer 0 of the caches.
  void run_uncached(ForwardPass& pass) const;
  void write_cross_kv(ForwardPass& pass, const std::vector<KvCache*>& sources) const;

  int layers() const { return static_cast<int>(layers_.size()); }
  const LayerShape& shape() const { return shape_; }

 private:
  void final_norm(ForwardPass& pass) const;

  LayerShape shape_;
  std::vector<Layer> layers_;
  Norm norm_;
};

// Reserves the buffers of a pass of so many rows and keys, so that nothing can fail on the way.
void reserve_buffers(SharedBuffers& shared, WorkerBuffers& own, const LayerShape& shape, int rows,
                     int keys);

}  // namespace outrider
