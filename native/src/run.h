// How a model's rows are shared out among the threads of its team.
#pragma once

#include "model.h"

#include <algorithm>
#include <span>

namespace outrider {

// What calls work in; a call borrows one and gives it back.
struct Model::Scratch {
  std::vector<Shared> shared;
  std::vector<Own> own;
};

class Model::Lease {
 public:
  explicit Lease(Model& model) : model_(model), scratch_(model.borrow()) {}
  ~Lease() { model_.give_back(std::move(scratch_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  Model& model_;
  std::unique_ptr<Scratch> scratch_;
};

// Which rows a worker takes where all work apart: whole texts, about as many rows for each.
class Deal {
 public:
  Deal(std::span<const Row> rows, int texts, int workers)
      : rows_(rows), texts_(texts), workers_(workers) {}

  // Whether there is so much to do, and for each about the same, that nobody need wait for others.
  bool pays() const {
    constexpr std::size_t kApart = 32;
    if (rows_.size() < kApart || texts_ < workers_) return false;
    std::size_t most = 0;
    for (int index = 0; index < workers_; ++index) most = std::max(most, part(index).size());
    return 2 * most * static_cast<std::size_t>(workers_) <= 3 * rows_.size();
  }
  int first_text(int index) const {
    if (index == 0) return 0;
    if (index == workers_) return texts_;
    return rows_[rows_.size() * static_cast<std::size_t>(index) /
                 static_cast<std::size_t>(workers_)]
        .text;
  }
  std::span<const Row> part(int index) const {
    const std::size_t begin = first_row(first_text(index));
    return rows_.subspan(begin, first_row(first_text(index + 1)) - begin);
  }

 private:
  std::size_t first_row(int text) const {
    const auto before = [](const Row& row, int wanted) { return row.text < wanted; };
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), text, before);
    return static_cast<std::size_t>(found - rows_.begin());
  }

  std::span<const Row> rows_;
  int texts_, workers_;
};

template <typename Prepare, typename Work>
void Model::run(std::span<const Row> rows, int texts, int most, const Prepare& prepare,
                const Work& work) {
  Lease lease(*this);
  Scratch& scratch = *lease;
  const std::size_t step = std::min(rows.size(), static_cast<std::size_t>(most));
  for (std::size_t worker = 0; worker < scratch.own.size(); ++worker)
    prepare(scratch.shared[worker], scratch.own[worker], static_cast<int>(step));
  for (std::size_t begin = 0; begin < rows.size(); begin += step) {
    const std::span<const Row> some = rows.subspan(begin, std::min(step, rows.size() - begin));
    const Deal deal(some, texts, team_.threads());
    const bool apart = deal.pays();
    team_.run([&](const Worker& worker) {
      const auto index = static_cast<std::size_t>(worker.index);
      if (worker.count == 1 || !apart) {
        Pass pass{kernel_,
                  worker,
                  some.data(),
                  static_cast<int>(some.size()),
                  scratch.shared[0],
                  scratch.own[index]};
        work(pass, 0);
        return;
      }
      const std::span<const Row> mine = deal.part(worker.index);
      if (mine.empty()) return;
      Pass pass{kernel_,
                Worker{},
                mine.data(),
                static_cast<int>(mine.size()),
                scratch.shared[index],
                scratch.own[index]};
      work(pass, deal.first_text(worker.index));
    });
  }
}

}  // namespace outrider
