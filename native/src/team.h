// Threads that run the layers of a model together.
//
// With few tokens every thread computes some columns of every product and waits for the others at a
// barrier. With many tokens every thread computes some of the sequences independently.
#pragma once

#include "fork.h"
#include "matrix.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

// Spins for a while, then yields.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait();

 private:
  const int count_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> phase_{0};
};

// One thread of a team.
struct Worker {
  int index = 0, count = 1;
  Barrier* barrier = nullptr;  // null if the worker is independent

  // This worker's share of n items.
  Range share(int n) const {
    return {static_cast<int>(static_cast<long long>(n) * index / count),
            static_cast<int>(static_cast<long long>(n) * (index + 1) / count)};
  }
  void wait() const {
    if (barrier != nullptr) barrier->wait();
  }
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs work(worker) on every thread, including the calling one, and returns when all are done. If
  // the team is busy, or in a forked child, which has no other threads, the calling thread runs the
  // work alone, with the same results. `work` must not throw.
  void run(const std::function<void(const Worker&)>& work);

 private:
  void worker_loop(int index);
  void close();

  const int threads_;
  const OwnerProcess process_;
  Barrier barrier_;
  std::mutex busy_;
  const std::function<void(const Worker&)>* work_ = nullptr;
  std::atomic<unsigned> generation_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> closing_{false};
  std::unique_ptr<std::vector<std::thread>> others_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace outrider
