// Small models of random shapes and weights.
#pragma once

#include "check.h"
#include "model.h"

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

  bool reads() const { return spec.encoder_layers > 0; }
  Weights weights() const;
  std::unique_ptr<Model> build(const std::string& instruction_set, int threads) const;
};

// Every model with a drafter; with a CTC decoder where it has an encoder. A crowded one has many
// words that are nearly alike.
TinyModel random_model(Dice& dice, Precision precision, bool crowded = false);

// Rows of length 1, each at right angles to all others.
std::vector<float> random_rotation(Dice& dice, int width);

}  // namespace outrider
