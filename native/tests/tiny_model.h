// Small models of random shapes and weights.
#pragma once

#include "check.h"
#include "decode.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

struct TinyModel {
  ModelSpec spec;
  std::optional<DrafterSpec> drafter;
  std::optional<CtcSpec> ctc;
  std::map<std::string, std::pair<std::vector<int>, std::vector<float>>> arrays;

  bool has_encoder() const { return spec.has_encoder(); }
  Weights weights() const;
  std::unique_ptr<Engine> build(const std::string& instruction_set, int threads) const;
};

// A model with a drafter, and with a CTC decoder if it has an encoder. A crowded model has a large
// vocabulary of similar tokens.
TinyModel random_model(Dice& dice, Precision precision, bool crowded = false);

// An orthonormal matrix.
std::vector<float> random_rotation(Dice& dice, int width);

}  // namespace outrider
