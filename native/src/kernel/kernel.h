// Functions that differ between instruction sets, selected at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

constexpr int kPanel = 16;      // output columns stored together in a packed weight
constexpr int kDepthStep = 64;  // inner dimension is padded to this: one row of an AMX tile

enum class Activation { relu, gelu, gelu_tanh, silu };

// One query of one head; keys are in blocks of 16, [block][width][16], values are [keys][width].
struct AttentionQuery {
  const float* q;
  const float* keys;
  const float* values;
  int visible;
  float* out;
  const float* bias = nullptr;  // added to the score of each key; null for none
};

constexpr int kQueryBlock = 16;  // queries computed together

// Operations on single rows of float32 (rows.cpp), compiled once for each family of machines.
// The result of a row depends on that row alone, and is the same in every family, bit for bit.
struct RowFunctions {
  // Quantises x to bytes, zero-padded to `depth`, and returns the scale.
  float (*quantise)(const float* x, int n, std::int8_t* bytes, int depth);
  // out = sums * (scale * scales) + bias
  void (*dequantise)(const std::int32_t* sums, int n, float scale, const float* scales,
                     const float* bias, float* out);
  // The float32 product: out[r][..] = x[r] times panels [depth][16], plus bias.
  void (*multiply_panel)(const float* const* x, int rows, int depth, const float* panel,
                         const float* bias, int n, float* const* out);
  void (*add)(float* x, const float* y, int n);
  void (*layer_norm)(const float* x, int n, const float* weight, const float* bias, float epsilon,
                     float* out);
  void (*rms_norm)(const float* x, int n, const float* weight, float epsilon, float* out);
  void (*activate)(Activation kind, float* x, int n);
  // x[i] = f(x[i]) * y[i]
  void (*gated_activation)(Activation kind, float* x, const float* y, int n);
  // Softmax attention of several queries. `scores` is scratch for kQueryBlock times the longest.
  void (*attend)(const AttentionQuery* queries, int count, int width, float scale, float* scores);
  // Rotary positions: rotates pairs (k, k + width / 2).
  void (*apply_rotary)(float* x, int width, const float* sines, const float* cosines);
  // SSRU with forget gate f = sigmoid(gate): state = f before + (1 - f) x, out = relu(state).
  // `before` is null for a zero state.
  void (*recur)(const float* x, const float* gate, const float* before, int n, float* state,
                float* out);
  void (*tanh)(float* x, int n);
  float (*dot)(const float* x, const float* y, int n);
  void (*softmax)(float* x, int n, float temperature);
  // The index of the maximum, the first of equals.
  int (*argmax)(const float* x, int n);
  // The `count` largest in descending order, the first of equals first.
  void (*top_k)(const float* x, int n, int count, int* indices, float* values);
  // x[i] - y
  void (*subtract)(float* x, float y, int n);
  // The largest bound of a panel's 16 tokens (see screen.h): over all groups of 64 places,
  // bias + sum scale (dots * step + shift) + rest * length. `records` holds scales and rests of
  // each group, 16 and 16, as bfloat16; `factors` a step, a shift and a length.
  float (*bound_panel)(const std::int32_t* dots, int groups, const float* factors,
                       const std::uint16_t* records, const float* bias);
  // log sum exp(x[i])
  float (*log_total)(const float* x, int n);
  // out[i] = exp((x[i] - max x) / temperature); tiny values become zero.
  void (*masses)(const float* x, int n, double temperature, double* out);
};

// sums[r][c] = bytes[r] . column c, exactly. Weights [panel][depth / 4][16][4]; `offsets` holds 128
// times the sum of each column, for machines that multiply unsigned by signed bytes.
using Product = void(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                     const std::int32_t* offsets, int panel_count, std::int32_t* sums);

// dots[r][p][g][c] = sum of bytes[r] times the nibbles, 0 to 15, of column c over the 64 places of
// group g, exactly. Nibbles [panel][group][8][16][4]: of eight neighbouring places of a column the
// first four are low halves of bytes, the others high ones.
using NibbleProduct = void(const std::int8_t* bytes, int rows, int groups,
                           const std::uint8_t* panels, int panel_count, std::int32_t* dots);

constexpr int kSummedApart = 64;                  // products of float32
constexpr int kGroup = 64;                        // places that share a scale
constexpr int kGroupBytes = kGroup / 2 * kPanel;  // nibbles of a panel's group

struct Kernel {
  const char* name;
  Product* product;
  const RowFunctions* rows;
  NibbleProduct* nibbles = nullptr;  // null without screening
  bool unsigned_bytes = false;       // the product expects `bytes` plus 128
};

// Instruction sets of this machine, best first; "portable" is always the last.
std::vector<std::string> available_kernels();

// An empty name selects the best. Throws std::invalid_argument for an unknown name.
const Kernel& find_kernel(const std::string& name);

}  // namespace outrider
