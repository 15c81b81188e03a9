#include "product_vnni.h"

namespace outrider {

void product_vnni(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                  const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  vnni_product<Vnni512, true>(bytes, rows, depth, panels, offsets, panel_count, sums);
}

}  // namespace outrider
