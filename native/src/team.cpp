#include "team.h"

namespace outrider {
namespace {

constexpr int kSpins = 2000;      // some microseconds: longer than a share of a layer
constexpr int kIdleSpins = 4000;  // longer than the time between two calls

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

void Barrier::wait() {
  const unsigned phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();  // the other thread may need this core
  }
}

Team::Team(int threads) : threads_(threads), barrier_(threads) {
  try {
    for (int index = 1; index < threads; ++index)
      others_->emplace_back([this, index] { worker_loop(index); });
  } catch (...) {  // the system refused a thread; stop the others
    close();
    throw;
  }
}

Team::~Team() { close(); }

void Team::close() {
  if (process_.forked()) {
    static_cast<void>(others_.release());  // the child has none of these threads
    return;
  }
  closing_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
  for (std::thread& other : *others_) other.join();
}

void Team::run(const std::function<void(const Worker&)>& work) {
  if (threads_ == 1 || process_.forked()) {
    work(Worker{});
    return;
  }
  const std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
  if (!mine.owns_lock()) {
    work(Worker{});
    return;
  }
  work_ = &work;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
  work(Worker{0, threads_, &barrier_});
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
}

void Team::worker_loop(int index) {
  unsigned seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen && spins < kIdleSpins) {
      pause();
      ++spins;
    }
    generation_.wait(seen, std::memory_order_acquire);  // sleeps until there is work
    ++seen;
    if (closing_.load(std::memory_order_acquire)) return;
    (*work_)(Worker{index, threads_, &barrier_});
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace outrider
