// Transformer layers, and stacks of them.
#pragma once

#include "kv_cache.h"
#include "matrix.h"
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

// One token of a forward pass: a row of every product.
struct Row {
  int sequence = 0;
  int token = 0;
  int position = 0;  // in its sequence and in the KV cache
  int visible = 0;   // number of keys it attends to
};

// Activations shared by the workers of a pass, [rows][..]: each worker writes its own columns and,
// after a barrier, reads all columns (see the table of barriers in layer.cpp).
struct SharedBuffers {
  Buffer<float> projected;         // queries, keys and values, or inputs and gates of an SSRU
  Buffer<float> context;           // output of attention before the output projection
  Buffer<float> ffn_inner;         // hidden units of the feed-forward
  Buffer<float> sublayer_out;      // output of a sublayer, to be added to the residual stream
  Buffer<float> draft_logits;      // of the drafter's head
  Buffer<int> candidates;          // [rows][candidates]: columns with the largest draft logits
  Buffer<float> candidate_scores;  // their logits
  Buffer<float> scores;            // of the model's head, for queries
};

// Buffers of one worker. Each worker has the whole residual stream, because computing a norm twice
// is cheaper than a barrier.
struct WorkerBuffers {
  Buffer<float> stream, normed, tapped_states, attention_scores, logits;
  Buffer<int> order;      // sorted tokens
  Buffer<float> best;     // their scores
  Buffer<double> masses;  // unnormalised probabilities for sampling
  Operand operand;
  ScreenBuffers screen;
  std::vector<AttentionQuery> queries;
};

// Columns of a product that are divided into parts, such as heads, of `width` columns each.
struct Section {
  int start = 0, width = 0;
};

// Output for the weights of cross-attention, [row][layer][head][key].
struct CrossWeights {
  float* data = nullptr;
  const Row* rows = nullptr;  // first row of the call
  int layers = 0, heads = 0, keys = 0;

  float* of(const Row* row, int layer, int head) const {
    return data + ((row - rows) * layers + layer) * static_cast<std::ptrdiff_t>(heads) * keys +
           static_cast<std::ptrdiff_t>(head) * keys;
  }
};

// One worker's forward pass of some rows.
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
  const SineTable* rotary = nullptr;
  const OffsetBias* bias = nullptr;             // of the scores of self-attention
  const CrossWeights* cross_weights = nullptr;  // null unless requested

  // Multiplies the loaded operand and writes this worker's share of the columns.
  void multiply(const Matrix& matrix, float* out);
  // Multiplies and returns this worker's parts, whose columns are then complete. Without a barrier
  // if each worker can compute exactly the columns of its own parts.
  Range multiply_parts(const Matrix& matrix, int parts, std::initializer_list<Section> sections,
                       float* out);
};

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
  int width = 0, heads = 0, kv_heads = 0, head_width = 0, inner = 0;
  bool pre_norm = false, gated = false, cross = false, rotary = false;
  bool recurrent = false;  // an SSRU instead of self-attention
  NormKind norm;
  Activation activation = Activation::relu;
  Precision precision = Precision::int8;

  int heads_width() const { return heads * head_width; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_width; }
  int up_width() const { return gated ? 2 * inner : inner; }
};

// The layers of a side decoder (drafter or CTC decoder), which reads states of the model.
struct SideDecoderSpec {
  int layers = 0, heads = 0, inner = 0;
  bool pre_norm = false, gated = false;
  Activation activation = Activation::relu;

  // The shape of its layers; their width is that of the target.
  LayerShape shape(LayerShape target) const {
    target.heads = target.kv_heads = heads;
    target.inner = inner;
    target.pre_norm = pre_norm;
    target.gated = gated;
    target.activation = activation;
    target.recurrent = false;
    target.head_width = target.width / heads;
    target.norm = {};
    return target;
  }
};

class Layer {
 public:
  Layer(PackedWeights& weights, const std::string& name, const LayerShape& shape);

  // Runs the rows of a pass, with layer `index` of the KV caches.
  void run(ForwardPass& pass, int index) const;
  // Writes the keys and values of cross-attention. The encoder output is loaded as the operand.
  void write_cross_kv(ForwardPass& pass, int index, const std::vector<KvCache*>& sources) const;

  const LayerShape& shape() const { return shape_; }

 private:
  void attend(ForwardPass& pass) const;
  void self_attention(ForwardPass& pass, int index) const;
  void recurrence(ForwardPass& pass, int index) const;
  void cross_attention(ForwardPass& pass, int index) const;
  // Writes the attention weights of the queries of some heads.
  void record_weights(ForwardPass& pass, int index, Range heads) const;
  void feed_forward(ForwardPass& pass) const;
  // Loads the residual stream as the operand, after the norm of a pre-norm layer.
  void load_sublayer_input(ForwardPass& pass, const Norm& norm) const;
  // Adds `sublayer_out` to the residual stream, and applies the norm of a post-norm layer.
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
  // Reads NAME.blocks.0, NAME.blocks.1, ...; a pre-norm stack ends with NAME.norm.
  Stack(PackedWeights& weights, const std::string& name, int layers, const LayerShape& shape);

  // Calls `after_layer` with the index of each layer after the layer.
  void run(ForwardPass& pass, const std::function<void(int)>& after_layer = nullptr) const;
  // Runs with caches of a single layer, for stacks whose keys and values no later call reads.
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

// Reserves the buffers of a pass of `rows` rows and at most `keys` keys; the pass allocates
// nothing.
void reserve_buffers(SharedBuffers& shared, WorkerBuffers& own, const LayerShape& shape, int rows,
                     int keys);

}  // namespace outrider
