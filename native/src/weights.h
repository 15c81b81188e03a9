// The named arrays a model is built from. They are looked at while it is built, and not kept.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace outrider {

struct Array {
  const float* data = nullptr;
  std::vector<int> shape;
};

class Weights {
 public:
  void insert(std::string name, Array array) { arrays_.emplace(std::move(name), std::move(array)); }

  bool has(const std::string& name) const { return arrays_.count(name) != 0; }

  // The array of this name and shape, all numbers finite; anything else is the caller's mistake,
  // and named.
  const float* get(const std::string& name, const std::vector<int>& shape) const {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) throw std::invalid_argument("the weights lack '" + name + "'");
    if (found->second.shape != shape)
      throw std::invalid_argument("'" + name + "' is " + describe(found->second.shape) +
                                  ", expected " + describe(shape));
    const float* data = found->second.data;
    bool finite = true;
    for (std::size_t i = 0; i < size(shape); ++i) finite &= std::isfinite(data[i]);
    if (!finite) throw std::invalid_argument("'" + name + "' holds numbers that are not finite");
    return data;
  }

  std::vector<float> copy(const std::string& name, const std::vector<int>& shape) const {
    const float* data = get(name, shape);
    return std::vector<float>(data, data + size(shape));
  }

 private:
  static std::size_t size(const std::vector<int>& shape) {
    std::size_t product = 1;
    for (int n : shape) product *= static_cast<std::size_t>(n);
    return product;
  }
  static std::string describe(const std::vector<int>& shape) {
    std::string text;
    for (int n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
    return text;
  }

  std::unordered_map<std::string, Array> arrays_;
};

}  // namespace outrider
