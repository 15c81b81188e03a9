#include "layer.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

float* row_of(Buffer<float>& buffer, int row, int width) {
  return buffer.data() + area(row, width);
}

}  // namespace

void Pass::multiply(const Matrix& matrix, float* out) {
  const Range mine = worker.share(matrix.panels());
  matrix.multiply(kernel, own.operand, mine, out + mine.begin * kPanel, matrix.columns());
}

Range Pass::multiply_parts(const Matrix& matrix, int parts, std::initializer_list<Section> sections,
                           float* out) {
  const Range mine = worker.share(parts);
  bool apart = parts % worker.count == 0 || parts > 4 * worker.count;  // or some would idle
  for (const Section& section : sections)
    apart = apart && section.start % kPanel == 0 && section.width % kPanel == 0;
  if (worker.count == 1 || !apart) {
    multiply(matrix, out);
    worker.wait();
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

Layer::Layer(const Weights& weights, const std::string& name, const LayerShape& shape)
    : shape_(shape),
      qkv_(weights, name + ".attention.qkv", shape.qkv_width(), shape.width, shape.precision),
      out_(weights, name + ".attention.out", shape.width, shape.width, shape.precision),
      up_(weights, name + ".feedforward.up", shape.up_width(), shape.width, shape.precision),
      down_(weights, name + ".feedforward.down", shape.width, shape.inner, shape.precision),
      attention_norm_(weights, name + ".attention_residual.norm", shape.width),
      feedforward_norm_(weights, name + ".feedforward_residual.norm", shape.width) {
  if (!shape.cross) return;
  cross_q_ = Matrix(weights, name + ".cross.q", shape.width, shape.width, shape.precision);
  cross_kv_ = Matrix(weights, name + ".cross.kv", 2 * shape.width, shape.width, shape.precision);
  cross_out_ = Matrix(weights, name + ".cross.out", shape.width, shape.width, shape.precision);
  cross_norm_ = Norm(weights, name + ".cross_residual.norm", shape.width);
}

void Layer::run(Pass& pass, int index) const {
  attend_self(pass, index);
  if (shape_.cross) attend_source(pass, index);
  feed_forward(pass);
}

void Layer::enter(Pass& pass, const Norm& norm) const {
  const int width = shape_.width;
  const float* x = pass.own.stream.data();
  if (shape_.pre_norm) {
    for (int r = 0; r < pass.count; ++r)
      norm.run(pass.kernel, row_of(pass.own.stream, r, width), row_of(pass.own.normed, r, width));
    x = pass.own.normed.data();
  }
  pass.own.operand.take(pass.kernel, shape_.precision, x, pass.count, width, width);
}

void Layer::leave(Pass& pass, const Norm& norm) const {
  const int width = shape_.width;
  for (int r = 0; r < pass.count; ++r) {
    float* x = row_of(pass.own.stream, r, width);
    pass.kernel.rows->add(x, row_of(pass.shared.delta, r, width), width);
    if (!shape_.pre_norm) norm.run(pass.kernel, x, x);
  }
}

void Layer::project(Pass& pass, const Matrix& matrix, const Buffer<float>& from, int width) const {
  pass.own.operand.take(pass.kernel, shape_.precision, from.data(), pass.count, width, width);
  pass.multiply(matrix, pass.shared.delta.data());
  pass.worker.wait();
}

void Layer::attend(Pass& pass) const {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_width()));
  pass.kernel.rows->attend(pass.own.sights.data(), static_cast<int>(pass.own.sights.size()),
                           shape_.head_width(), scale, pass.own.scores.data());
}

void Layer::attend_self(Pass& pass, int index) const {
  enter(pass, attention_norm_);
  const int width = shape_.head_width(), group = shape_.heads / shape_.kv_heads;
  const Range heads = pass.multiply_parts(qkv_, shape_.kv_heads,
                                          {{0, group * width},
                                           {shape_.heads * width, width},
                                           {(shape_.heads + shape_.kv_heads) * width, width}},
                                          pass.shared.wide.data());
  const RowFunctions& rows = *pass.kernel.rows;
  // All keys of a head first: in an encoder a token sees those after it, too.
  for (int r = 0; r < pass.count; ++r) {
    const Row& row = pass.rows[r];
    float* qkv = row_of(pass.shared.wide, r, shape_.qkv_width());
    for (int head = heads.begin; head < heads.end; ++head) {
      float* key = qkv + (shape_.heads + head) * width;
      if (shape_.rotary)
        rows.rotate(key, width, pass.angles->sines(row.place), pass.angles->cosines(row.place));
      (*pass.texts)[static_cast<std::size_t>(row.text)]->write(
          index, head, row.place, key, qkv + (shape_.heads + shape_.kv_heads + head) * width);
    }
  }
  pass.own.sights.clear();
  for (int head = heads.begin; head < heads.end; ++head)
    for (int r = 0; r < pass.count; ++r) {
      const Row& row = pass.rows[r];
      const KeyValues& text = *(*pass.texts)[static_cast<std::size_t>(row.text)];
      for (int q = head * group; q < (head + 1) * group; ++q) {
        float* query = row_of(pass.shared.wide, r, shape_.qkv_width()) + q * width;
        if (shape_.rotary)
          rows.rotate(query, width, pass.angles->sines(row.place), pass.angles->cosines(row.place));
        pass.own.sights.push_back({query, text.keys(index, head), text.values(index, head),
                                   row.visible,
                                   row_of(pass.shared.context, r, shape_.width) + q * width});
      }
    }
  attend(pass);
  pass.worker.wait();
  project(pass, out_, pass.shared.context, shape_.width);
  leave(pass, attention_norm_);
}

void Layer::attend_source(Pass& pass, int index) const {
  enter(pass, cross_norm_);
  const int width = shape_.head_width();
  const Range heads =
      pass.multiply_parts(cross_q_, shape_.heads, {{0, width}}, pass.shared.wide.data());
  pass.own.sights.clear();
  for (int head = heads.begin; head < heads.end; ++head)
    for (int r = 0; r < pass.count; ++r) {
      const auto text = static_cast<std::size_t>(pass.rows[r].text);
      const KeyValues& source = *(*pass.sources)[text];
      pass.own.sights.push_back({row_of(pass.shared.wide, r, shape_.width) + head * width,
                                 source.keys(index, head), source.values(index, head),
                                 (*pass.source_lengths)[text],
                                 row_of(pass.shared.context, r, shape_.width) + head * width});
    }
  attend(pass);
  pass.worker.wait();
  project(pass, cross_out_, pass.shared.context, shape_.width);
  leave(pass, cross_norm_);
}

void Layer::feed_forward(Pass& pass) const {
  enter(pass, feedforward_norm_);
  const int width = shape_.up_width(), inner = shape_.inner;
  const int some = inner % kPanel == 0 ? kPanel : 1;  // columns that stay together
  const Section left{0, some}, right{inner, some};
  float* out = pass.shared.inner.data();
  Range mine = shape_.gated ? pass.multiply_parts(up_, inner / some, {left, right}, out)
                            : pass.multiply_parts(up_, inner / some, {left}, out);
  mine = {mine.begin * some, mine.end * some};
  for (int r = 0; r < pass.count; ++r) {
    float* x = row_of(pass.shared.inner, r, width) + mine.begin;
    if (shape_.gated)
      pass.kernel.rows->gate(shape_.activation, x, x + inner, mine.end - mine.begin);
    else
      pass.kernel.rows->activate(shape_.activation, x, mine.end - mine.begin);
  }
  pass.worker.wait();
  pass.own.operand.take(pass.kernel, shape_.precision, pass.shared.inner.data(), pass.count, inner,
                        width);
  pass.multiply(down_, pass.shared.delta.data());
  pass.worker.wait();
  leave(pass, feedforward_norm_);
}

void Layer::read_source(Pass& pass, int index, const std::vector<KeyValues*>& sources) const {
  const int width = shape_.head_width();
  const Range heads = pass.multiply_parts(
      cross_kv_, shape_.heads, {{0, width}, {shape_.width, width}}, pass.shared.wide.data());
  for (int r = 0; r < pass.count; ++r) {
    const float* kv = row_of(pass.shared.wide, r, 2 * shape_.width);
    for (int head = heads.begin; head < heads.end; ++head)
      sources[static_cast<std::size_t>(pass.rows[r].text)]->write(
          index, head, pass.rows[r].place, kv + head * width, kv + shape_.width + head * width);
  }
  pass.worker.wait();
}

std::size_t Layer::bytes() const {
  std::size_t total = 0;
  for (const Matrix* matrix : {&qkv_, &out_, &cross_q_, &cross_kv_, &cross_out_, &up_, &down_})
    total += matrix->bytes();
  return total;
}

Stack::Stack(const Weights& weights, const std::string& name, int layers, const LayerShape& shape)
    : shape_(shape) {
  layers_.reserve(static_cast<std::size_t>(layers));
  for (int index = 0; index < layers; ++index)
    layers_.emplace_back(weights, name + ".blocks." + std::to_string(index), shape);
  if (shape.pre_norm) norm_ = Norm(weights, name + ".norm", shape.width);
}

void Stack::run(Pass& pass, const std::function<void(int)>& seen) const {
  for (int index = 0; index < layers(); ++index) {
    layers_[static_cast<std::size_t>(index)].run(pass, index);
    if (seen) seen(index);
  }
  finish(pass);
}

void Stack::run_whole(Pass& pass) const {
  for (const Layer& layer : layers_) layer.run(pass, 0);
  finish(pass);
}

void Stack::finish(Pass& pass) const {
  if (norm_.weight.empty()) return;
  for (int r = 0; r < pass.count; ++r) {
    float* x = row_of(pass.own.stream, r, shape_.width);
    norm_.run(pass.kernel, x, x);
  }
}

void Stack::read_sources(Pass& pass, const std::vector<KeyValues*>& sources) const {
  for (int index = 0; index < layers(); ++index)
    layers_[static_cast<std::size_t>(index)].read_source(pass, index, sources);
}

std::size_t Stack::bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) total += layer.bytes();
  return total;
}

void prepare(Shared& shared, Own& own, const LayerShape& shape, int rows, int keys) {
  const int width = shape.width;
  shared.wide.reserve(area(rows, std::max(shape.qkv_width(), 2 * width)));
  shared.context.reserve(area(rows, width));
  shared.delta.reserve(area(rows, width));
  shared.inner.reserve(area(rows, shape.up_width()));
  own.stream.reserve(area(rows, width));
  own.normed.reserve(area(rows, width));
  own.scores.reserve(area(kTogether, round_up(keys, kPanel)));
  own.sights.reserve(area(rows, shape.heads));
  own.operand.prepare(shape.precision, rows, std::max(width, shape.inner));
}

}  // namespace outrider
