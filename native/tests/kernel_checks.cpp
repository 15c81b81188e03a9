// Products and row functions against plain implementations, and bit-identical to each other.
#include "check.h"
#include "checks.h"
#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace outrider {
namespace {

std::vector<const Kernel*> all_kernels() {
  std::vector<const Kernel*> found;
  for (const std::string& name : available_kernels()) found.push_back(&find_kernel(name));
  return found;
}

bool near(double found, double expected, double tolerance) {
  return std::fabs(found - expected) <= tolerance * (1.0 + std::fabs(expected));
}

// A weight in the packed layout of the kernels, made without Matrix.
struct Packed {
  Buffer<std::int8_t> bytes;
  Buffer<std::int32_t> offsets;
};

Packed pack(const std::vector<int>& weight, int columns, int depth) {
  Packed packed{Buffer<std::int8_t>(weight.size()),
                Buffer<std::int32_t>(static_cast<std::size_t>(columns))};
  for (int c = 0; c < columns; ++c) {
    std::int32_t sum = 0;
    for (int k = 0; k < depth; ++k) {
      const int value = weight[static_cast<std::size_t>(c * depth + k)];
      const int at = (c / kPanel * depth + k / 4 * 4) * kPanel + c % kPanel * 4 + k % 4;
      packed.bytes[static_cast<std::size_t>(at)] = static_cast<std::int8_t>(value);
      sum += value;
    }
    packed.offsets[static_cast<std::size_t>(c)] = 128 * sum;
  }
  return packed;
}

// Bytes from -127 to 127, or only these two, for which sums of 16 bits would overflow.
std::vector<int> random_bytes(Dice& dice, int count, bool ends) {
  std::vector<int> out(static_cast<std::size_t>(count));
  for (int& x : out) x = ends ? dice.one_of({-127, 127}) : dice.pick(-127, 127);
  return out;
}

void check_product(Dice& dice, int rows, int panels, int depth, bool ends) {
  const int columns = panels * kPanel;
  const std::vector<int> x = random_bytes(dice, rows * depth, ends);
  const std::vector<int> weight = random_bytes(dice, columns * depth, ends);
  const Packed packed = pack(weight, columns, depth);
  Buffer<std::int8_t> bytes(x.size());
  std::vector<std::int32_t> expected;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      expected.push_back(std::inner_product(x.begin() + r * depth, x.begin() + (r + 1) * depth,
                                            weight.begin() + c * depth, 0));
  for (const Kernel* kernel : all_kernels()) {
    std::vector<std::int32_t> sums(expected.size(), -1);
    const int more = kernel->unsigned_bytes ? 128 : 0;
    for (std::size_t i = 0; i < x.size(); ++i) bytes[i] = static_cast<std::int8_t>(x[i] + more);
    kernel->product(bytes.data(), rows, depth, packed.bytes.data(), packed.offsets.data(), panels,
                    sums.data());
    CHECK(same(sums, expected));
  }
}

void check_products(Dice& dice) {
  for (int rows : {1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 32, 33})
    for (int panels : {1, 2, 3, 4, 5, 8})
      check_product(dice, rows, panels, 64 * dice.pick(1, 3), dice.chance(0.3));
  check_product(dice, 4, 2, 8192, true);
  for (int rows : {5, 6, 7})  // more than one piece of the depth, and a remainder
    check_product(dice, rows, 3, 1600, false);
}

// Quantises a row; returns the scale.
float plain_quantise(const float* x, int n, int* bytes) {
  float most = 0.0f;
  for (int k = 0; k < n; ++k) most = std::max(most, std::fabs(x[k]));
  if (!(most > 1e-30f)) {
    std::fill_n(bytes, n, 0);
    return 0.0f;
  }
  for (int k = 0; k < n; ++k) bytes[k] = static_cast<int>(std::nearbyint(x[k] * (127.0f / most)));
  return most / 127.0f;
}

struct Product {
  int rows, columns, width;
  std::vector<float> x, weight, bias;
};

std::vector<float> plain_int8(const Product& product) {
  std::vector<int> a(static_cast<std::size_t>(product.width)), w(a);
  std::vector<float> out;
  for (int r = 0; r < product.rows; ++r) {
    const float scale =
        plain_quantise(product.x.data() + r * product.width, product.width, a.data());
    for (int c = 0; c < product.columns; ++c) {
      const float* column = product.weight.data() + c * product.width;
      float step = 0.0f;
      for (int k = 0; k < product.width; ++k) step = std::max(step, std::fabs(column[k]));
      step = step > 0.0f ? step / 127.0f : 1.0f;
      for (int k = 0; k < product.width; ++k)
        w[static_cast<std::size_t>(k)] = static_cast<int>(std::nearbyint(column[k] / step));
      const int sum = std::inner_product(a.begin(), a.end(), w.begin(), 0);
      out.push_back(static_cast<float>(sum) * (step * scale) +
                    product.bias[static_cast<std::size_t>(c)]);
    }
  }
  return out;
}

// The product in pieces: some rows at a time, panels split in two, rows at another address.
std::vector<float> computed(const Kernel& kernel, Dice& dice, const Product& product,
                            Precision precision) {
  Weights weights;
  weights.insert(
      {"w.weight", product.weight.data(), NumberType::float32, {product.columns, product.width}});
  weights.insert({"w.bias", product.bias.data(), NumberType::float32, {product.columns}});
  PackedWeights packed(std::move(weights));
  const Matrix matrix(packed, "w", product.columns, product.width, precision);
  std::vector<float> out(static_cast<std::size_t>(product.rows * product.columns), -7.0f);
  std::vector<int> places(static_cast<std::size_t>(product.rows));
  std::iota(places.begin(), places.end(), 0);
  for (int first = 0; first < product.rows;) {
    const int rows = dice.pick(1, product.rows - first);
    const int middle = dice.pick(0, matrix.panels());
    Operand operand;
    operand.reserve(precision, rows, product.width);
    operand.load(kernel, precision, product.x.data() + first * product.width, rows, product.width,
                 product.width);
    for (const Range part : {Range{0, middle}, Range{middle, matrix.panels()}})
      matrix.multiply(kernel, operand, part, out.data() + part.begin * kPanel, product.columns,
                      places.data() + first);
    first += rows;
  }
  return out;
}

void check_matrices(Dice& dice) {
  for (int round = 0; round < 60; ++round) {
    Product product{dice.pick(1, 70), dice.pick(1, 90), dice.pick(1, 150), {}, {}, {}};
    product.x = dice.normals(static_cast<std::size_t>(product.rows * product.width));
    product.weight = dice.normals(static_cast<std::size_t>(product.columns * product.width));
    product.bias = dice.normals(static_cast<std::size_t>(product.columns));
    if (dice.chance(0.2)) std::fill_n(product.x.begin(), product.width, 0.0f);
    if (dice.chance(0.2)) std::fill_n(product.weight.begin(), product.width, 0.0f);
    const std::vector<float> expected = plain_int8(product);
    std::vector<float> floats;
    for (const Kernel* kernel : all_kernels()) {
      CHECK(same(computed(*kernel, dice, product, Precision::int8), expected));
      const std::vector<float> found = computed(*kernel, dice, product, Precision::float32);
      CHECK(floats.empty() || same(found, floats));
      floats = found;
    }
    for (int r = 0; r < product.rows; ++r)
      for (int c = 0; c < product.columns; ++c) {
        double sum = product.bias[static_cast<std::size_t>(c)];
        for (int k = 0; k < product.width; ++k)
          sum += static_cast<double>(product.x[static_cast<std::size_t>(r * product.width + k)]) *
                 product.weight[static_cast<std::size_t>(c * product.width + k)];
        CHECK(near(floats[static_cast<std::size_t>(r * product.columns + c)], sum, 1e-4));
      }
  }
}

void check_quantise(Dice& dice) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 200; ++round) {
    const int n = dice.pick(1, 100), depth = round_up(n, kDepthStep);
    std::vector<float> x = dice.normals(static_cast<std::size_t>(n), std::exp(dice.normal(8.0f)));
    if (dice.chance(0.1)) std::fill(x.begin(), x.end(), dice.one_of({0.0f, 1e-40f, -1e-35f}));
    const bool broken = dice.chance(0.1);
    if (broken) x[0] = dice.one_of({infinity, -infinity, std::nanf("")});
    std::vector<std::int8_t> first;
    for (const Kernel* kernel : all_kernels()) {
      std::vector<std::int8_t> bytes(static_cast<std::size_t>(depth), 99);
      const float scale = kernel->rows->quantise(x.data(), n, bytes.data(), depth);
      CHECK(scale >= 0.0f && scale < infinity);
      CHECK(std::all_of(bytes.begin() + n, bytes.end(), [](std::int8_t b) { return b == 0; }));
      if (broken) continue;  // the result is undefined; it must not crash
      CHECK(first.empty() || same(bytes, first));
      first = bytes;
      bool close = true;
      for (int k = 0; k < n; ++k) {
        const float back = scale * bytes[static_cast<std::size_t>(k)];
        close &= std::fabs(back - x[static_cast<std::size_t>(k)]) <= 0.501f * scale + 1e-30f;
      }
      CHECK(close);
    }
  }
}

double plain_activation(Activation kind, double x) {
  if (kind == Activation::gelu) return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
  if (kind == Activation::gelu_tanh)
    return 0.5 * x *
           (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
  if (kind == Activation::silu) return x / (1.0 + std::exp(-x));
  return std::max(x, 0.0);
}

void check_activations(Dice& dice, const RowFunctions& rows) {
  const int n = dice.pick(1, 50);
  const std::vector<float> x = dice.normals(static_cast<std::size_t>(2 * n), 3.0f);
  for (Activation kind :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    std::vector<float> activated = x, gated = x;
    rows.activate(kind, activated.data(), n);
    rows.gated_activation(kind, gated.data(), gated.data() + n, n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      CHECK(near(activated[i], plain_activation(kind, x[i]), 2e-6));
      CHECK(
          near(gated[i], plain_activation(kind, x[i]) * x[i + static_cast<std::size_t>(n)], 1e-5));
    }
    CHECK(std::equal(x.begin() + n, x.end(), activated.begin() + n));
  }
  std::vector<float> curved = x;
  rows.tanh(curved.data(), n);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
    CHECK(near(curved[i], std::tanh(static_cast<double>(x[i])), 2e-6));
}

void check_recur(Dice& dice, const RowFunctions& rows) {
  const auto n = static_cast<std::size_t>(dice.pick(1, 50));
  const std::vector<float> x = dice.normals(n, 3.0f), gate = dice.normals(n, 3.0f);
  const std::vector<float> before = dice.normals(n, 3.0f);
  const RowFunctions& plain = *find_kernel("portable").rows;
  for (const float* state : {before.data(), static_cast<const float*>(nullptr)}) {
    std::vector<float> next(n), out(n), same(n), same_out(n);
    rows.recur(x.data(), gate.data(), state, static_cast<int>(n), next.data(), out.data());
    plain.recur(x.data(), gate.data(), state, static_cast<int>(n), same.data(), same_out.data());
    CHECK(next == same && out == same_out);
    for (std::size_t i = 0; i < n; ++i) {
      const double forget = 1.0 / (1.0 + std::exp(-static_cast<double>(gate[i])));
      CHECK(near(next[i], forget * (state != nullptr ? state[i] : 0.0f) + (1.0 - forget) * x[i],
                 1e-5));
      CHECK(out[i] == std::max(next[i], 0.0f));
    }
  }
}

void check_norm(Dice& dice, const RowFunctions& rows) {
  const int n = dice.pick(2, 70);
  const auto size = static_cast<std::size_t>(n);
  const std::vector<float> x = dice.normals(size), weight = dice.normals(size),
                           bias = dice.normals(size);
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const float epsilon = dice.chance(0.5) ? 1e-5f : 0.1f;
  double variance = epsilon, square = epsilon;
  for (float value : x) variance += (value - mean) * (value - mean) / n;
  for (float value : x) square += static_cast<double>(value) * value / n;
  std::vector<float> out(size);
  rows.layer_norm(x.data(), n, weight.data(), bias.data(), epsilon, out.data());
  for (std::size_t i = 0; i < size; ++i)
    CHECK(near(out[i], (x[i] - mean) / std::sqrt(variance) * weight[i] + bias[i], 1e-4));
  rows.rms_norm(x.data(), n, weight.data(), epsilon, out.data());
  for (std::size_t i = 0; i < size; ++i)
    CHECK(near(out[i], x[i] / std::sqrt(square) * weight[i], 1e-4));
}

// Attention of one query, as in the equation.
std::vector<double> plain_attention(const float* query, const float* keys, const float* values,
                                    int visible, int width, double scale, const float* bias) {
  std::vector<double> weights(static_cast<std::size_t>(visible));
  std::vector<double> mixed(static_cast<std::size_t>(width), 0.0);
  double total = 0.0;
  for (int j = 0; j < visible; ++j) {
    double score = 0.0;
    for (int k = 0; k < width; ++k)
      score += static_cast<double>(query[k]) * keys[(j / kPanel * width + k) * kPanel + j % kPanel];
    score = scale * score + (bias == nullptr ? 0.0 : bias[j]);
    total += weights[static_cast<std::size_t>(j)] = std::exp(score);
  }
  for (int j = 0; j < visible; ++j)
    for (int k = 0; k < width; ++k)
      mixed[static_cast<std::size_t>(k)] +=
          weights[static_cast<std::size_t>(j)] / total * values[j * width + k];
  return mixed;
}

// Several queries at once, with different numbers of visible keys.
void check_attend(Dice& dice, const RowFunctions& rows) {
  const int count = dice.pick(1, 40), width = dice.pick(1, 80), longest = dice.pick(1, 50);
  const int padded = round_up(longest, kPanel);
  const auto wide = static_cast<std::size_t>(width);
  const std::vector<float> q = dice.normals(static_cast<std::size_t>(count) * wide);
  const std::vector<float> keys = dice.normals(static_cast<std::size_t>(padded) * wide);
  const std::vector<float> values = dice.normals(static_cast<std::size_t>(longest) * wide);
  std::vector<float> scores(static_cast<std::size_t>(kQueryBlock * padded)), out(q.size());
  const std::vector<float> bias = dice.normals(static_cast<std::size_t>(longest));
  std::vector<AttentionQuery> queries;
  for (int n = 0; n < count; ++n)
    queries.push_back({q.data() + n * width, keys.data(), values.data(), dice.pick(1, longest),
                       out.data() + n * width, dice.chance(0.5) ? bias.data() : nullptr});
  rows.attend(queries.data(), count, width, 0.3f, scores.data());
  for (const AttentionQuery& query : queries) {
    const std::vector<double> expected =
        plain_attention(query.q, keys.data(), values.data(), query.visible, width, 0.3, query.bias);
    for (std::size_t k = 0; k < wide; ++k) CHECK(near(query.out[k], expected[k], 1e-4));
  }
}

void check_top(Dice& dice, const RowFunctions& rows) {
  const int n = dice.pick(1, 300), count = dice.pick(1, std::min(n, 20));
  std::vector<float> x = dice.normals(static_cast<std::size_t>(n));
  if (dice.chance(0.5))
    for (float& value : x) value = std::round(value * 2.0f);  // many equal values
  std::vector<int> order(x.size()), places(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
  });
  order.resize(places.size());
  std::vector<float> values(places.size());
  rows.top_k(x.data(), n, count, places.data(), values.data());
  CHECK(same(places, order));
  CHECK(rows.argmax(x.data(), n) == order[0]);
  std::vector<float> shares = values;
  rows.softmax(shares.data(), count, 0.7f);
  double total = 0.0;
  for (float value : values) total += std::exp((value - values[0]) / 0.7);
  for (std::size_t i = 0; i < shares.size(); ++i)
    CHECK(near(shares[i], std::exp((values[i] - values[0]) / 0.7) / total, 1e-5));
}

// Masses for sampling: bit-identical on every instruction set, and exact up to rounding.
void check_masses(Dice& dice, const RowFunctions& rows) {
  const int n = dice.pick(1, 300);
  const RowFunctions& plain = *find_kernel("portable").rows;
  const float width = dice.one_of({0.1f, 3.0f, 30.0f});
  std::vector<float> x = dice.normals(static_cast<std::size_t>(n), width);
  const double temperature = dice.one_of({1.0, 0.3, 7.0, 1e-60, 1e300});
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (float value : x) sum += std::exp(value - most);
  const float total = rows.log_total(x.data(), n), other = plain.log_total(x.data(), n);
  CHECK(near(total, std::log(sum) + most, 2e-6 * (1.0 + std::fabs(most))));
  CHECK(same(std::vector<float>{total}, std::vector<float>{other}));
  if (n > 1)
    x[static_cast<std::size_t>(dice.pick(0, n - 1))] = -std::numeric_limits<float>::infinity();
  const double top = *std::max_element(x.begin(), x.end());
  std::vector<double> mass(x.size(), -1.0), expected(x.size(), -1.0);
  rows.masses(x.data(), n, temperature, mass.data());
  plain.masses(x.data(), n, temperature, expected.data());
  CHECK(same(mass, expected));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp((x[i] - top) / temperature);
    CHECK(std::fabs(mass[i] - exact) <= 4e-16 * exact + 1e-300);
  }
  std::vector<float> moved = x;
  rows.subtract(moved.data(), total, n);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(moved[i] == x[i] - total);
}

void check_row_functions(std::uint64_t seed) {
  for (int round = 0; round < 40; ++round)
    for (const Kernel* kernel : all_kernels()) {
      Dice dice(seed + static_cast<std::uint64_t>(round));
      check_activations(dice, *kernel->rows);
      check_recur(dice, *kernel->rows);
      check_norm(dice, *kernel->rows);
      check_attend(dice, *kernel->rows);
      check_top(dice, *kernel->rows);
      check_masses(dice, *kernel->rows);
    }
}

}  // namespace

void check_kernels(std::uint64_t seed) {
  Dice dice(seed);
  check_products(dice);
  check_matrices(dice);
  check_quantise(dice);
  check_row_functions(seed);
  CHECK(refuses([] { find_kernel("abacus"); }));
  CHECK(available_kernels().back() == std::string("portable"));
}

}  // namespace outrider
