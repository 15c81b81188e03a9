#include "state.h"

namespace outrider {

Text Text::copy() const {
  Text twin;
  twin.length = length;
  twin.before = before;
  twin.source = source;
  twin.decoder = decoder.copy(length);
  twin.drafter = drafter.copy(length);
  twin.recent = recent;
  twin.earlier = earlier;
  twin.recent_start = recent_start;
  return twin;
}

const float* Text::newest(int width) const {
  const int index = length - recent_start - 1;
  if (index >= 0 && !recent.empty())
    return recent.data() + static_cast<std::ptrdiff_t>(index) * width;
  return earlier.empty() ? nullptr : earlier.data();
}

void State::rollback(const std::vector<int>& lengths) {
  if (lengths.size() != texts.size()) throw std::invalid_argument("rollback: one length per row");
  for (std::size_t b = 0; b < texts.size(); ++b)
    if (lengths[b] < texts[b]->before || lengths[b] > texts[b]->length)
      throw std::invalid_argument("rollback may only undo tokens of the last extend");
  for (std::size_t b = 0; b < texts.size(); ++b) texts[b]->length = lengths[b];
}

void State::select(const std::vector<int>& rows) {
  std::vector<int> uses(texts.size(), 0);
  for (int row : rows) {
    if (row < 0 || row >= size()) throw std::invalid_argument("select: there is no such row");
    ++uses[static_cast<std::size_t>(row)];
  }
  // Copies first: they alone can fail, and then nothing has happened.
  std::vector<std::unique_ptr<Text>> chosen(rows.size());
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const auto row = static_cast<std::size_t>(rows[n]);
    if (--uses[row] > 0) chosen[n] = std::make_unique<Text>(texts[row]->copy());
  }
  for (std::size_t n = 0; n < rows.size(); ++n)
    if (!chosen[n]) chosen[n] = std::move(texts[static_cast<std::size_t>(rows[n])]);
  texts = std::move(chosen);
}

std::size_t State::bytes() const {
  std::size_t total = 0;
  for (const auto& text : texts) total += text->decoder.bytes() + text->drafter.bytes();
  return total;
}

}  // namespace outrider
