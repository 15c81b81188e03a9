#include "state.h"

#include <string>
#include <unordered_set>

namespace outrider {
namespace {

template <typename Table>
void keep_longer(std::shared_ptr<const Table>& mine, const std::shared_ptr<const Table>& other) {
  if (other && (!mine || mine->length() < other->length())) mine = other;
}

}  // namespace

Sequence Sequence::copy() const {
  Sequence copied;
  copied.capacity = capacity;
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
    if (row < 0 || row >= size()) throw std::invalid_argument("select: no such row");
    ++uses[static_cast<std::size_t>(row)];
  }
  // Copies come first: only they can throw, and the state is still unchanged then.
  std::vector<std::unique_ptr<Sequence>> chosen(rows.size());
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const auto row = static_cast<std::size_t>(rows[n]);
    if (--uses[row] > 0) chosen[n] = std::make_unique<Sequence>(sequences[row]->copy());
  }
  for (std::size_t n = 0; n < rows.size(); ++n)
    if (!chosen[n]) chosen[n] = std::move(sequences[static_cast<std::size_t>(rows[n])]);
  sequences = std::move(chosen);
}

void State::join(State& other, const std::vector<int>& at) {
  if (owner != other.owner) throw std::invalid_argument("join: the states are of two models");
  if (drafting_ != other.drafting_ || parallel_ != other.parallel_)
    throw std::invalid_argument("join: the states were opened for different modes");
  if (at.size() != other.sequences.size())
    throw std::invalid_argument("join: one place for each row of the other state");
  std::size_t length = sequences.size();
  std::vector<bool> taken(length, false);
  for (const int place : at) {
    if (place < 0 || static_cast<std::size_t>(place) > length)
      throw std::invalid_argument("join: no place " + std::to_string(place));
    if (static_cast<std::size_t>(place) == length) {
      taken.push_back(false);
      ++length;
    }
    if (taken[static_cast<std::size_t>(place)])
      throw std::invalid_argument("join: two rows for place " + std::to_string(place));
    taken[static_cast<std::size_t>(place)] = true;
  }
  sequences.reserve(length);  // nothing below throws
  sequences.resize(length);
  for (std::size_t n = 0; n < at.size(); ++n)
    sequences[static_cast<std::size_t>(at[n])] = std::move(other.sequences[n]);
  other.sequences.clear();
  keep_longer(sines, other.sines);
  keep_longer(rotary, other.rotary);
  keep_longer(drafter_rotary, other.drafter_rotary);
  keep_longer(bias, other.bias);
}

std::size_t State::bytes() const {
  std::size_t total = 0;
  std::unordered_set<const Source*> seen;  // beams share sources
  for (const auto& sequence : sequences) {
    total += sequence->decoder.bytes() + sequence->drafter.bytes();
    const Source* source = sequence->source.get();
    if (source == nullptr || !seen.insert(source).second) continue;
    total += source->decoder.bytes() + source->drafter.bytes();
    total += sizeof(float) * source->encoder_output.size();
    if (source->shortlist) total += source->shortlist->bytes();
  }
  return total;
}

}  // namespace outrider
