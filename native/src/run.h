// How a model's rows are shared out among the threads of its team.
#pragma once

#include "model.h"

#include <algorithm>
#include <span>

namespace outrider {

// The buffers of a call, for every thread; a call borrows one and gives it back.
struct Model::Scratch {
  std::vector<SharedBuffers> shared;
  std::vector<WorkerBuffers> own;
};

class Model::ScratchLease {
 public:
  explicit ScratchLease(Model& model) : model_(model), scratch_(model.acquire_scratch()) {}
  ~ScratchLease() { model_.release_scratch(std::move(scratch_)); }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  Model& model_;
  std::unique_ptr<Scratch> scratch_;
};

// Which rows a worker takes where each computes alone: whole sequences, about as many rows for
// each.
class RowSplit {
 public:
  RowSplit(std::span<const Row> rows, int sequences, int workers)
      : rows_(rows), sequences_(sequences), workers_(workers) {}

  // Whether there is so much to do, and for each about the same, that nobody need wait for others.
  bool worthwhile() const {
    constexpr std::size_t kMinRows = 32;
    if (rows_.size() < kMinRows || sequences_ < workers_) return false;
    std::size_t most = 0;
    for (int index = 0; index < workers_; ++index) most = std::max(most, part(index).size());
    return 2 * most * static_cast<std::size_t>(workers_) <= 3 * rows_.size();
  }
  int first_sequence(int index) const {
    if (index == 0) return 0;
    if (index == workers_) return sequences_;
    return rows_[rows_.size() * static_cast<std::size_t>(index) /
                 static_cast<std::size_t>(workers_)]
        .sequence;
  }
  std::span<const Row> part(int index) const {
    const std::size_t begin = first_row(first_sequence(index));
    return rows_.subspan(begin, first_row(first_sequence(index + 1)) - begin);
  }

 private:
  std::size_t first_row(int sequence) const {
    const auto before = [](const Row& row, int wanted) { return row.sequence < wanted; };
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), sequence, before);
    return static_cast<std::size_t>(found - rows_.begin());
  }

  std::span<const Row> rows_;
  int sequences_, workers_;
};

template <typename Prepare, typename Work>
void Model::run(std::span<const Row> rows, int sequences, int max_rows, const Prepare& prepare,
                const Work& work) {
  ScratchLease lease(*this);
  Scratch& scratch = *lease;
  const std::size_t step = std::min(rows.size(), static_cast<std::size_t>(max_rows));
  for (std::size_t worker = 0; worker < scratch.own.size(); ++worker)
    prepare(scratch.shared[worker], scratch.own[worker], static_cast<int>(step));
  for (std::size_t begin = 0; begin < rows.size(); begin += step) {
    const std::span<const Row> some = rows.subspan(begin, std::min(step, rows.size() - begin));
    const RowSplit split(some, sequences, team_.threads());
    const bool independent = split.worthwhile();
    team_.run([&](const Worker& worker) {
      const auto index = static_cast<std::size_t>(worker.index);
      if (worker.count == 1 || !independent) {
        ForwardPass pass{kernel_,           worker,
                         some.data(),       static_cast<int>(some.size()),
                         scratch.shared[0], scratch.own[index]};
        work(pass);
        return;
      }
      const std::span<const Row> mine = split.part(worker.index);
      if (mine.empty()) return;
      ForwardPass pass{kernel_,
                       Worker{},
                       mine.data(),
                       static_cast<int>(mine.size()),
                       scratch.shared[index],
                       scratch.own[index]};
      work(pass);
    });
  }
}

}  // namespace outrider
