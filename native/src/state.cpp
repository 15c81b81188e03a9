#include "state.h"

namespace outrider {

Sequence Sequence::copy() const {
  Sequence copied;
  copied.length = length;
  copied.length_before = length_before;
  copied.source = source;
  copied.decoder = decoder.copy(length);
  copied.drafter = drafter.copy(length);
  copied.recent_states = recent_states;
  copied.state_before_recent = state_before_recent;
  copied.recent_start = recent_start;
  return copied;
}

const float* Sequence::last_state(int width) const {
  const int index = length - recent_start - 1;
  if (index >= 0 && !recent_states.empty())
    return recent_states.data() + static_cast<std::ptrdiff_t>(index) * width;
  return state_before_recent.empty() ? nullptr : state_before_recent.data();
}

void State::rollback(const std::vector<int>& lengths) {
  if (lengths.size() != sequences.size())
    throw std::invalid_argument("rollback: one length per row");
  for (std::size_t b = 0; b < sequences.size(); ++b)
    if (lengths[b] < sequences[b]->length_before || lengths[b] > sequences[b]->length)
      throw std::invalid_argument("rollback may only undo tokens of the last extend");
  for (std::size_t b = 0; b < sequences.size(); ++b) sequences[b]->length = lengths[b];
}

void State::select(const std::vector<int>& rows) {
  std::vector<int> uses(sequences.size(), 0);
  for (int row : rows) {
    if (row < 0 || row >= size()) throw std::invalid_argument("select: there is no such row");
    ++uses[static_cast<std::size_t>(row)];
  }
  // Copies first: they alone can fail, and then nothing has happened.
  std::vector<std::unique_ptr<Sequence>> chosen(rows.size());
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const auto row = static_cast<std::size_t>(rows[n]);
    if (--uses[row] > 0) chosen[n] = std::make_unique<Sequence>(sequences[row]->copy());
  }
  for (std::size_t n = 0; n < rows.size(); ++n)
    if (!chosen[n]) chosen[n] = std::move(sequences[static_cast<std::size_t>(rows[n])]);
  sequences = std::move(chosen);
}

std::size_t State::bytes() const {
  std::size_t total = 0;
  for (const auto& sequence : sequences)
    total += sequence->decoder.bytes() + sequence->drafter.bytes();
  return total;
}

}  // namespace outrider
