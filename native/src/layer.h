// One Transformer layer, and several of them one after another.
#pragma once

#include "key_values.h"
#include "matrix.h"
#include "positions.h"
#include "team.h"

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace outrider {

inline std::size_t area(int rows, int width) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
}

// A token on its way through the layers.
struct Row {
  int text = 0;
  int token = 0;
  int place = 0;    // where it stands in its text, and where its key is kept
  int visible = 0;  // how many keys it sees
};

// Buffers that all workers of a pass write their columns to.
struct Shared {
  Buffer<float> wide, context, delta, inner, extra, best_scores;
  Buffer<int> best;
};

// Buffers of one worker. Each keeps the whole stream: computing a norm twice is cheaper than
// waiting.
struct Own {
  Buffer<float> stream, normed, tapped, scores, logits;
  Operand operand;
  std::vector<Sight> sights;
};

// Columns of a product that belong to parts, heads for one: `width` for each, one after another.
struct Section {
  int start = 0, width = 0;
};

// One way of some rows through some layers, as one worker sees it.
struct Pass {
  const Kernel& kernel;
  Worker worker;
  const Row* rows;
  int count;
  Shared& shared;
  Own& own;
  const std::vector<KeyValues*>* texts = nullptr;  // what each text remembers
  const std::vector<const KeyValues*>* sources = nullptr;
  const std::vector<int>* source_lengths = nullptr;
  const SineTable* angles = nullptr;  // for rotary positions

  // Multiplies what the operand holds and writes this worker's share of the columns.
  void multiply(const Matrix& matrix, float* out);
  // The same where the columns belong to parts, and a worker goes on with its own parts alone: then
  // nobody need wait. Where parts cannot be dealt out like that, all wait. Returns its parts.
  Range multiply_parts(const Matrix& matrix, int parts, std::initializer_list<Section> sections,
                       float* out);
};

struct Norm {
  std::vector<float> weight, bias;

  Norm() = default;
  Norm(const Weights& weights, const std::string& name, int width)
      : weight(weights.copy(name + ".weight", {width})),
        bias(weights.copy(name + ".bias", {width})) {}

  void run(const Kernel& kernel, const float* x, float* out) const {
    kernel.rows->normalise(x, static_cast<int>(weight.size()), weight.data(), bias.data(), out);
  }
};

struct LayerShape {
  int width = 0, heads = 0, kv_heads = 0, inner = 0;
  bool pre_norm = false, gated = false, cross = false, rotary = false;
  Activation activation = Activation::relu;
  Precision precision = Precision::int8;

  int head_width() const { return width / heads; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_width(); }
  int up_width() const { return gated ? 2 * inner : inner; }
};

// The layers of a decoder that rides beside a model: a drafter's, or a CTC decoder's.
struct RiderSpec {
  int layers = 0, heads = 0, inner = 0;
  bool pre_norm = false, gated = false;
  Activation activation = Activation::relu;

  // A layer of its own make, as wide as the target's.
  LayerShape shape(LayerShape target) const {
    target.heads = target.kv_heads = heads;
    target.inner = inner;
    target.pre_norm = pre_norm;
    target.gated = gated;
    target.activation = activation;
    return target;
  }
};

class Layer {
 public:
  Layer(const Weights& weights, const std::string& name, const LayerShape& shape);

  // Runs the rows of a pass; their keys and values are kept as those of layer `index`.
  void run(Pass& pass, int index) const;
  // Keeps what this layer's cross-attention reads of sources: the operand of the pass holds them.
  void read_source(Pass& pass, int index, const std::vector<KeyValues*>& sources) const;

  const LayerShape& shape() const { return shape_; }
  std::size_t bytes() const;

 private:
  void attend(Pass& pass) const;
  void attend_self(Pass& pass, int index) const;
  void attend_source(Pass& pass, int index) const;
  void feed_forward(Pass& pass) const;
  void enter(Pass& pass, const Norm& norm) const;
  void leave(Pass& pass, const Norm& norm) const;
  void project(Pass& pass, const Matrix& matrix, const Buffer<float>& from, int width) const;

  LayerShape shape_;
  Matrix qkv_, out_, cross_q_, cross_kv_, cross_out_, up_, down_;
  Norm attention_norm_, cross_norm_, feedforward_norm_;
};

class Stack {
 public:
  Stack() = default;
  // `name` holds blocks.0, blocks.1 ...; a stack of pre-norm layers ends with a norm of its own.
  Stack(const Weights& weights, const std::string& name, int layers, const LayerShape& shape);

  // `seen` is told the index of each layer that the stream has just left.
  void run(Pass& pass, const std::function<void(int)>& seen = nullptr) const;
  // The same where nobody will ask for keys again: all layers keep theirs in one place.
  void run_whole(Pass& pass) const;
  void read_sources(Pass& pass, const std::vector<KeyValues*>& sources) const;

  int layers() const { return static_cast<int>(layers_.size()); }
  const LayerShape& shape() const { return shape_; }
  std::size_t bytes() const;

 private:
  void finish(Pass& pass) const;

  LayerShape shape_;
  std::vector<Layer> layers_;
  Norm norm_;
};

// Makes room for a pass of so many rows, so that nothing can fail on the way.
void prepare(Shared& shared, Own& own, const LayerShape& shape, int rows, int keys);

}  // namespace outrider
