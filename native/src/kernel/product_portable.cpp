// The int8 product in plain C++, for all machines.
#include "kernel.h"

namespace outrider {

void product_portable(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                      const std::int32_t*, int panel_count, std::int32_t* sums) {
  for (int p = 0; p < panel_count; ++p) {
    const std::int8_t* panel = panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel;
    for (int r = 0; r < rows; ++r) {
      const std::int8_t* row = bytes + static_cast<std::ptrdiff_t>(r) * depth;
      std::int32_t sum[kPanel] = {};
      for (int k = 0; k < depth; k += 4)
        for (int c = 0; c < kPanel; ++c) {
          const std::int8_t* four = panel + k * kPanel + c * 4;
          sum[c] +=
              row[k] * four[0] + row[k + 1] * four[1] + row[k + 2] * four[2] + row[k + 3] * four[3];
        }
      std::int32_t* out = sums + (static_cast<std::ptrdiff_t>(r) * panel_count + p) * kPanel;
      for (int c = 0; c < kPanel; ++c) out[c] = sum[c];
    }
  }
}

}  // namespace outrider
