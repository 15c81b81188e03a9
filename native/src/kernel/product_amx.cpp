// The int8 product with AMX: a tile is 16 rows of 64 bytes, and one instruction multiplies two.
//
// Packed weights are already in the layout of tiles: 16 groups of four inner places, each 16
// columns wide. Up to 16 rows are multiplied with four panels at a time, 32 rows with two.
#include "kernel.h"
#include "product_vnni.h"

namespace outrider {
namespace {

constexpr int kTileRows = 16;
constexpr int kFewRows = 4;  // below this vector instructions are as fast and need no configuration

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights.
inline void configure(int upper, int lower) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.bytes[tile] = 64;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<std::uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<std::uint8_t>(lower);
  config.rows[6] = config.rows[7] = kTileRows;
  _tile_loadconfig(&config);
}

// Up to 16 rows and four panels; all four sums have `rows` rows.
inline void one_by_four(const std::int8_t* bytes, int depth, const std::int8_t* panel, int stride,
                        std::int32_t* sums) {
  const std::ptrdiff_t next = static_cast<std::ptrdiff_t>(depth) * kPanel;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < depth; k += kDepthStep) {
    const std::int8_t* at = panel + k * kPanel;
    _tile_loadd(4, bytes + k, depth);
    _tile_loadd(6, at, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, at + next, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(6, at + 2 * next, 64);
    _tile_dpbssd(2, 4, 6);
    _tile_loadd(7, at + 3 * next, 64);
    _tile_dpbssd(3, 4, 7);
  }
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + kPanel, stride);
  _tile_stored(2, sums + 2 * kPanel, stride);
  _tile_stored(3, sums + 3 * kPanel, stride);
}

inline void one_by_one(const std::int8_t* bytes, int depth, const std::int8_t* panel, int stride,
                       std::int32_t* sums) {
  _tile_zero(0);
  for (int k = 0; k < depth; k += kDepthStep) {
    _tile_loadd(4, bytes + k, depth);
    _tile_loadd(6, panel + k * kPanel, 64);
    _tile_dpbssd(0, 4, 6);
  }
  _tile_stored(0, sums, stride);
}

// 17 to 32 rows and two panels.
inline void two_by_two(const std::int8_t* bytes, int depth, const std::int8_t* panel, int stride,
                       std::int32_t* sums, int columns) {
  const std::ptrdiff_t next = static_cast<std::ptrdiff_t>(depth) * kPanel;
  const std::int8_t* lower = bytes + kTileRows * depth;
  std::int32_t* below = sums + kTileRows * columns;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < depth; k += kDepthStep) {
    const std::int8_t* at = panel + k * kPanel;
    _tile_loadd(4, bytes + k, depth);
    _tile_loadd(6, at, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, at + next, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, lower + k, depth);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + kPanel, stride);
  _tile_stored(2, below, stride);
  _tile_stored(3, below + kPanel, stride);
}

inline void up_to_16(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                     int panel_count, std::int32_t* sums) {
  const int stride = panel_count * kPanel * 4;
  configure(rows, rows);
  int p = 0;
  for (; p + 4 <= panel_count; p += 4)
    one_by_four(bytes, depth, panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel, stride,
                sums + p * kPanel);
  for (; p < panel_count; ++p)
    one_by_one(bytes, depth, panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel, stride,
               sums + p * kPanel);
}

}  // namespace

void product_amx(const std::int8_t* bytes, int rows, int depth, const std::int8_t* panels,
                 const std::int32_t* offsets, int panel_count, std::int32_t* sums) {
  if (rows < kFewRows)
    return vnni_product<Vnni512, false>(bytes, rows, depth, panels, offsets, panel_count, sums);
  const int columns = panel_count * kPanel;
  int r = 0;
  while (rows - r > kTileRows && panel_count % 2 == 0) {
    const int both = rows - r < 2 * kTileRows ? rows - r : 2 * kTileRows;
    configure(kTileRows, both - kTileRows);
    for (int p = 0; p < panel_count; p += 2)
      two_by_two(bytes + r * depth, depth, panels + static_cast<std::ptrdiff_t>(p) * depth * kPanel,
                 columns * 4, sums + r * columns + p * kPanel, columns);
    r += both;
  }
  for (; r < rows; r += kTileRows)
    up_to_16(bytes + r * depth, rows - r < kTileRows ? rows - r : kTileRows, depth, panels,
             panel_count, sums + r * columns);
  _tile_release();
}

}  // namespace outrider
