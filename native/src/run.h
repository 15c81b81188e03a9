// How a model's rows are shared out among the threads of its team.
#pragma once

#include "model.h"

#include <algorithm>

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

template <typename Prepare, typename Work>
void Model::run(const std::vector<Row>& rows, int texts, const Prepare& prepare, const Work& work) {
  constexpr int kApart = 32;  // rows from which threads take texts of their own
  Lease lease(*this);
  Scratch& scratch = *lease;
  const int count = static_cast<int>(rows.size());
  for (std::size_t worker = 0; worker < scratch.own.size(); ++worker)
    prepare(scratch.shared[worker], scratch.own[worker], count);
  const auto first_row = [&](int text) {
    const auto before = [](const Row& row, int wanted) { return row.text < wanted; };
    return std::lower_bound(rows.begin(), rows.end(), text, before) - rows.begin();
  };
  // The first text of a worker, so that all get about as many rows.
  const auto first_text = [&](int index, int workers) {
    return index == workers ? texts
                            : rows[area(index, count) / static_cast<std::size_t>(workers)].text;
  };
  team_.run([&](const Worker& worker) {
    const auto index = static_cast<std::size_t>(worker.index);
    if (worker.count == 1 || count < kApart || texts < worker.count) {
      Pass pass{kernel_, worker, rows.data(), count, scratch.shared[0], scratch.own[index]};
      work(pass, 0, texts);
      return;
    }
    const int first = worker.index == 0 ? 0 : first_text(worker.index, worker.count);
    const int end = first_text(worker.index + 1, worker.count);
    const auto begin = first_row(first);
    const int mine = static_cast<int>(first_row(end) - begin);
    if (mine == 0) return;
    Pass pass{kernel_,           Worker{}, rows.data() + begin, mine, scratch.shared[index],
              scratch.own[index]};
    work(pass, first, end - first);
  });
}

}  // namespace outrider
