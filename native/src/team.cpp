#include "team.h"

namespace outrider {
namespace {

constexpr int kLooks = 2000;      // some microseconds: longer than a share of a layer should take
constexpr int kIdleLooks = 4000;  // longer than a caller needs between two calls

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

void Barrier::wait() {
  const unsigned round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  for (int looks = 0; round_.load(std::memory_order_acquire) == round; ++looks) {
    if (looks < kLooks)
      pause();
    else
      std::this_thread::yield();  // the thread we wait for may need this very core
  }
}

Team::Team(int threads) : threads_(threads), barrier_(threads) {
  try {
    for (int index = 1; index < threads; ++index)
      others_->emplace_back([this, index] { serve(index); });
  } catch (...) {  // the system gives no more threads; those there are must end
    close();
    throw;
  }
}

Team::~Team() { close(); }

void Team::close() {
  if (birthplace_.left()) {
    static_cast<void>(others_.release());  // no such threads here: neither to join nor to let go
    return;
  }
  closing_.store(true, std::memory_order_release);
  called_.fetch_add(1, std::memory_order_acq_rel);
  called_.notify_all();
  for (std::thread& other : *others_) other.join();
}

void Team::run(const std::function<void(const Worker&)>& work) {
  if (threads_ == 1 || birthplace_.left()) {
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
  called_.fetch_add(1, std::memory_order_acq_rel);
  called_.notify_all();
  work(Worker{0, threads_, &barrier_});
  for (int looks = 0; running_.load(std::memory_order_acquire) != 0; ++looks) {
    if (looks < kLooks)
      pause();
    else
      std::this_thread::yield();
  }
}

void Team::serve(int index) {
  unsigned seen = 0;
  for (;;) {
    int looks = 0;
    while (called_.load(std::memory_order_acquire) == seen && looks < kIdleLooks) {
      pause();
      ++looks;
    }
    called_.wait(seen, std::memory_order_acquire);  // asleep until there is work
    ++seen;
    if (closing_.load(std::memory_order_acquire)) return;
    (*work_)(Worker{index, threads_, &barrier_});
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace outrider
