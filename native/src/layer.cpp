// Barriers. Several workers run a pass together: each writes its own columns of the shared buffers
// and then reads columns of others. Each wait() below is labelled with a letter:
//
//   buffer        written by         until  read by            from  written again after
//   projected     product q, k, v    A      attention          A     B: attention is complete
//                 product into       A      recurrence         A     C: the recurrence is complete
//   context       attention          B      output projection  B     C: the projection is complete
//   ffn_inner     product up         A      activation         A
//                 activation         D      product down       D     E: the product is complete
//   sublayer_out  projection; down   C; E   add_to_residual    C; E  B or D of the next sublayer
//                 recurrence         C      add_to_residual    C     the same
//   KV caches     a head's worker           the same worker
//
// All other buffers (residual stream, operand, queries) belong to one worker. A is only needed if a
// worker's columns of the product are not those it continues with (see multiply_parts). In float32
// an operand points into the buffer it was loaded from, so that buffer is free when the product is
// complete, not when the operand is loaded. A later call reads the KV caches that other workers
// wrote after Team::run has ended.
#include "layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

float* row_of(Buffer<float>& buffer, int row, int width) {
  return buffer.data() + area(row, width);
}

}  // namespace

void ForwardPass::multiply(const Matrix& matrix, float* out) {
  const Range mine = worker.share(matrix.panels());
  matrix.multiply(kernel, own.operand, mine, out + mine.begin * kPanel, matrix.columns());
}

Range ForwardPass::multiply_parts(const Matrix& matrix, int parts,
                                  std::initializer_list<Section> sections, float* out) {
  const Range mine = worker.share(parts);
  bool apart = parts % worker.count == 0 || parts > 4 * worker.count;  // else some workers idle
  for (const Section& section : sections)
    apart = apart && section.start % kPanel == 0 && section.width % kPanel == 0;
  if (worker.count == 1 || !apart) {
    multiply(matrix, out);
    worker.wait();  // A: `out` is complete
    return mine;
  }
  for (const Section& section : sections) {
    const int begin = section.start + mine.begin * section.width;
    const int end = section.start + mine.end * section.width;
    matrix.multiply(kernel, own.operand, {begin / kPanel, end / kPanel}, out + begin,
                    matrix.columns());
  }
  return mine;
}

Layer::Layer(PackedWeights& weights, const std::string& name, const LayerShape& shape)
    : shape_(shape) {
  const auto matrix = [&](const char* part, int columns, int depth) {
    return Matrix(weights, name + part, columns, depth, shape.precision);
  };
  const auto norm = [&](const char* part) {
    return Norm(weights, name + part, shape.width, shape.norm);
  };
  const int width = shape.width, heads = shape.heads_width();
  if (shape.recurrent) {
    into_ = matrix(".attention.into", 2 * width, width);
  } else {
    qkv_ = matrix(".attention.qkv", shape.qkv_width(), width);
    out_ = matrix(".attention.out", width, heads);
  }
  attention_norm_ = norm(".attention_residual.norm");
  up_ = matrix(".feedforward.up", shape.up_width(), width);
  down_ = matrix(".feedforward.down", width, shape.inner);
  feedforward_norm_ = norm(".feedforward_residual.norm");
  if (!shape.cross) return;
  cross_q_ = matrix(".cross.q", heads, width);
  cross_kv_ = matrix(".cross.kv", 2 * heads, width);
  cross_out_ = matrix(".cross.out", width, heads);
  cross_norm_ = norm(".cross_residual.norm");
}

void Layer::run(ForwardPass& pass, int index) const {
  if (shape_.recurrent)
    recurrence(pass, index);
  else
    self_attention(pass, index);
  if (shape_.cross) cross_attention(pass, index);
  feed_forward(pass);
}

void Layer::load_sublayer_input(ForwardPass& pass, const Norm& norm) const {
  const int width = shape_.width;
  const float* x = pass.own.stream.data();
  if (shape_.pre_norm) {
    for (int r = 0; r < pass.count; ++r)
      norm.run(pass.kernel, row_of(pass.own.stream, r, width), row_of(pass.own.normed, r, width));
    x = pass.own.normed.data();
  }
  pass.own.operand.load(pass.kernel, shape_.precision, x, pass.count, width, width);
}

void Layer::add_to_residual(ForwardPass& pass, const Norm& norm) const {
  const int width = shape_.width;
  for (int r = 0; r < pass.count; ++r) {
    float* x = row_of(pass.own.stream, r, width);
    pass.kernel.rows->add(x, row_of(pass.shared.sublayer_out, r, width), width);
    if (!shape_.pre_norm) norm.run(pass.kernel, x, x);
  }
}

void Layer::project_output(ForwardPass& pass, const Matrix& matrix, const Buffer<float>& from,
                           int width) const {
  pass.own.operand.load(pass.kernel, shape_.precision, from.data(), pass.count, width, width);
  pass.multiply(matrix, pass.shared.sublayer_out.data());
  pass.worker.wait();  // C: `sublayer_out` is complete; `context` is free
}

void Layer::attend(ForwardPass& pass) const {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_width));
  pass.kernel.rows->attend(pass.own.queries.data(), static_cast<int>(pass.own.queries.size()),
                           shape_.head_width, scale, pass.own.attention_scores.data());
}

void Layer::self_attention(ForwardPass& pass, int index) const {
  load_sublayer_input(pass, attention_norm_);
  const int width = shape_.head_width, group = shape_.heads / shape_.kv_heads;
  const Range heads = pass.multiply_parts(qkv_, shape_.kv_heads,
                                          {{0, group * width},
                                           {shape_.heads * width, width},
                                           {(shape_.heads + shape_.kv_heads) * width, width}},
                                          pass.shared.projected.data());
  const RowFunctions& rows = *pass.kernel.rows;
  // All keys of a head are written first: in an encoder a token also attends to later keys.
  for (int r = 0; r < pass.count; ++r) {
    const Row& row = pass.rows[r];
    float* qkv = row_of(pass.shared.projected, r, shape_.qkv_width());
    for (int head = heads.begin; head < heads.end; ++head) {
      float* key = qkv + (shape_.heads + head) * width;
      if (shape_.rotary)
        rows.apply_rotary(key, width, pass.rotary->sines(row.position),
                          pass.rotary->cosines(row.position));
      (*pass.caches)[static_cast<std::size_t>(row.sequence)]->write(
          index, head, row.position, key, qkv + (shape_.heads + shape_.kv_heads + head) * width);
    }
  }
  pass.own.queries.clear();
  for (int head = heads.begin; head < heads.end; ++head)
    for (int r = 0; r < pass.count; ++r) {
      const Row& row = pass.rows[r];
      const KvCache& cache = *(*pass.caches)[static_cast<std::size_t>(row.sequence)];
      for (int q = head * group; q < (head + 1) * group; ++q) {
        float* query = row_of(pass.shared.projected, r, shape_.qkv_width()) + q * width;
        if (shape_.rotary)
          rows.apply_rotary(query, width, pass.rotary->sines(row.position),
                            pass.rotary->cosines(row.position));
        pass.own.queries.push_back(
            {query, cache.keys(index, head), cache.values(index, head), row.visible,
             row_of(pass.shared.context, r, shape_.heads_width()) + q * width,
             pass.bias == nullptr ? nullptr : pass.bias->row(q, row.position)});
      }
    }
  attend(pass);
  pass.worker.wait();  // B: `context` is complete; `projected` and `sublayer_out` are free
  project_output(pass, out_, pass.shared.context, shape_.heads_width());
  add_to_residual(pass, attention_norm_);
}

void Layer::recurrence(ForwardPass& pass, int index) const {
  load_sublayer_input(pass, attention_norm_);
  const int width = shape_.head_width;
  const Range heads = pass.multiply_parts(into_, shape_.heads, {{0, width}, {shape_.width, width}},
                                          pass.shared.projected.data());
  pass.worker.wait();                     // B: `sublayer_out` is free
  for (int r = 0; r < pass.count; ++r) {  // tokens of a sequence are in order
    const Row& row = pass.rows[r];
    KvCache& cache = *(*pass.caches)[static_cast<std::size_t>(row.sequence)];
    const float* x = row_of(pass.shared.projected, r, 2 * shape_.width);
    for (int head = heads.begin; head < heads.end; ++head)
      pass.kernel.rows->recur(
          x + head * width, x + shape_.width + head * width,
          row.position == 0 ? nullptr : cache.state(index, head, row.position - 1), width,
          cache.state(index, head, row.position),
          row_of(pass.shared.sublayer_out, r, shape_.width) + head * width);
  }
  pass.worker.wait();  // C: `sublayer_out` is complete; `projected` is free
  add_to_residual(pass, attention_norm_);
}

void Layer::cross_attention(ForwardPass& pass, int index) const {
  load_sublayer_input(pass, cross_norm_);
  const int width = shape_.head_width, all = shape_.heads_width();
  const Range heads =
      pass.multiply_parts(cross_q_, shape_.heads, {{0, width}}, pass.shared.projected.data());
  pass.own.queries.clear();
  for (int head = heads.begin; head < heads.end; ++head)
    for (int r = 0; r < pass.count; ++r) {
      const auto sequence = static_cast<std::size_t>(pass.rows[r].sequence);
      const KvCache& source = *(*pass.source_caches)[sequence];
      pass.own.queries.push_back({row_of(pass.shared.projected, r, all) + head * width,
                                  source.keys(index, head), source.values(index, head),
                                  (*pass.source_lengths)[sequence],
                                  row_of(pass.shared.context, r, all) + head * width});
    }
  if (pass.cross_weights != nullptr) record_weights(pass, index, heads);
  attend(pass);
  pass.worker.wait();  // B: `context` is complete; `projected` and `sublayer_out` are free
  project_output(pass, cross_out_, pass.shared.context, all);
  add_to_residual(pass, cross_norm_);
}

void Layer::record_weights(ForwardPass& pass, int index, Range heads) const {
  const int width = shape_.head_width;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  auto query = pass.own.queries.begin();
  for (int head = heads.begin; head < heads.end; ++head)
    for (int r = 0; r < pass.count; ++r, ++query) {
      float* weights = pass.cross_weights->of(pass.rows + r, index, head);
      float peak = -std::numeric_limits<float>::infinity(), total = 0.0f;
      for (int j = 0; j < query->visible; ++j) {
        const float* keys = query->keys + (j / kPanel) * kPanel * width + j % kPanel;
        float dot = 0.0f;
        for (int k = 0; k < width; ++k) dot += query->q[k] * keys[k * kPanel];
        weights[j] = dot * scale;
        peak = std::max(peak, weights[j]);
      }
      for (int j = 0; j < query->visible; ++j) total += weights[j] = std::exp(weights[j] - peak);
      for (int j = 0; j < query->visible; ++j) weights[j] /= total;
    }
}

void Layer::feed_forward(ForwardPass& pass) const {
  load_sublayer_input(pass, feedforward_norm_);
  const int width = shape_.up_width(), inner = shape_.inner;
  const int some = inner % kPanel == 0 ? kPanel : 1;  // columns that one worker computes
  const Section left{0, some}, right{inner, some};
  float* out = pass.shared.ffn_inner.data();
  Range mine = shape_.gated ? pass.multiply_parts(up_, inner / some, {left, right}, out)
                            : pass.multiply_parts(up_, inner / some, {left}, out);
  mine = {mine.begin * some, mine.end * some};
  for (int r = 0; r < pass.count; ++r) {
    float* x = row_of(pass.shared.ffn_inner, r, width) + mine.begin;
    if (shape_.gated)
      pass.kernel.rows->gated_activation(shape_.activation, x, x + inner, mine.end - mine.begin);
    else
      pass.kernel.rows->activate(shape_.activation, x, mine.end - mine.begin);
  }
  pass.worker.wait();  // D: `ffn_inner` is complete; `sublayer_out` is free
  pass.own.operand.load(pass.kernel, shape_.precision, pass.shared.ffn_inner.data(), pass.count,
                        inner, width);
  pass.multiply(down_, pass.shared.sublayer_out.data());
  pass.worker.wait();  // E: `sublayer_out` is complete; `ffn_inner` is free
  add_to_residual(pass, feedforward_norm_);
}

void Layer::write_cross_kv(ForwardPass& pass, int index,
                           const std::vector<KvCache*>& sources) const {
  const int width = shape_.head_width, all = shape_.heads_width();
  const Range heads = pass.multiply_parts(cross_kv_, shape_.heads, {{0, width}, {all, width}},
                                          pass.shared.projected.data());
  for (int r = 0; r < pass.count; ++r) {
    const float* kv = row_of(pass.shared.projected, r, 2 * all);
    for (int head = heads.begin; head < heads.end; ++head)
      sources[static_cast<std::size_t>(pass.rows[r].sequence)]->write(
          index, head, pass.rows[r].position, kv + head * width, kv + all + head * width);
  }
  pass.worker.wait();  // like B: `projected` is free for the next layer's keys and values
}

Stack::Stack(PackedWeights& weights, const std::string& name, int layers, const LayerShape& shape)
    : shape_(shape) {
  layers_.reserve(static_cast<std::size_t>(layers));
  for (int index = 0; index < layers; ++index)
    layers_.emplace_back(weights, name + ".blocks." + std::to_string(index), shape);
  if (shape.pre_norm) norm_ = Norm(weights, name + ".norm", shape.width, shape.norm);
}

void Stack::run(ForwardPass& pass, const std::function<void(int)>& after_layer) const {
  for (int index = 0; index < layers(); ++index) {
    layers_[static_cast<std::size_t>(index)].run(pass, index);
    if (after_layer) after_layer(index);
  }
  final_norm(pass);
}

void Stack::run_uncached(ForwardPass& pass) const {
  for (const Layer& layer : layers_) layer.run(pass, 0);
  final_norm(pass);
}

void Stack::final_norm(ForwardPass& pass) const {
  if (norm_.weight.empty()) return;
  for (int r = 0; r < pass.count; ++r) {
    float* x = row_of(pass.own.stream, r, shape_.width);
    norm_.run(pass.kernel, x, x);
  }
}

void Stack::write_cross_kv(ForwardPass& pass, const std::vector<KvCache*>& sources) const {
  for (int index = 0; index < layers(); ++index)
    layers_[static_cast<std::size_t>(index)].write_cross_kv(pass, index, sources);
}

void reserve_buffers(SharedBuffers& shared, WorkerBuffers& own, const LayerShape& shape, int rows,
                     int keys) {
  const int width = shape.width, heads = shape.heads_width();
  shared.projected.reserve(area(rows, std::max({shape.qkv_width(), 2 * heads, 2 * width})));
  shared.context.reserve(area(rows, std::max(width, heads)));
  shared.sublayer_out.reserve(area(rows, width));
  shared.ffn_inner.reserve(area(rows, shape.up_width()));
  own.stream.reserve(area(rows, width));
  own.normed.reserve(area(rows, width));
  own.attention_scores.reserve(area(kQueryBlock, round_up(keys, kPanel)));
  own.queries.reserve(area(rows, shape.heads));
  own.operand.reserve(shape.precision, rows, std::max({width, heads, shape.inner}));
}

}  // namespace outrider
