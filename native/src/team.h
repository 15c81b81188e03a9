// Threads that go through the layers of a model together.
//
// Few tokens: every thread runs every layer, computes its share of the columns, and waits for the
// others at a barrier. Many tokens: every thread takes some of the sequences and needs nobody.
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

// Waits by looking again and again, for a while; then lets others run.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait();

 private:
  const int count_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> phase_{0};
};

// One thread's place in a team.
struct Worker {
  int index = 0, count = 1;
  Barrier* barrier = nullptr;  // none where a thread works alone

  // This worker's share of n things.
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

  // Runs work(worker) on every thread, the calling one among them, and returns when all are done.
  // If the team is busy with another caller, or this is a forked process, where its threads are
  // not, the calling thread does all the work alone: the numbers are the same. `work` must not
  // throw.
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
