// Products with weights of four bits in plain C++.
#include "kernel.h"

namespace outrider {

void nibbles_portable(const std::int8_t* bytes, int rows, int groups, const std::uint8_t* panels,
                      int panel_count, std::int32_t* dots) {
  for (int r = 0; r < rows; ++r)
    for (int p = 0; p < panel_count; ++p)
      for (int g = 0; g < groups; ++g) {
        const std::int8_t* row = bytes + (static_cast<std::ptrdiff_t>(r) * groups + g) * kGroup;
        const std::uint8_t* group =
            panels + (static_cast<std::ptrdiff_t>(p) * groups + g) * kGroupBytes;
        std::int32_t sum[kPanel] = {};
        for (int k = 0; k < kGroup; k += 8)
          for (int c = 0; c < kPanel; ++c)
            for (int i = 0; i < 4; ++i) {
              const int both = group[k / 2 * kPanel + c * 4 + i];
              sum[c] += row[k + i] * (both & 15) + row[k + 4 + i] * (both >> 4);
            }
        for (int c = 0; c < kPanel; ++c) *dots++ = sum[c];
      }
}

}  // namespace outrider
