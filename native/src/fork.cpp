#include "fork.h"

#include <pthread.h>
#include <unistd.h>

#include <new>

namespace outrider {
namespace {

std::mutex shared_records;

}  // namespace

std::mutex& records() {
  static const bool watching = [] {
    const auto release = [] { shared_records.unlock(); };
    if (pthread_atfork([] { shared_records.lock(); }, release, release) != 0)
      throw std::bad_alloc();
    return true;
  }();
  static_cast<void>(watching);
  return shared_records;
}

Birthplace::Birthplace() : process_(getpid()) {}

bool Birthplace::left() const { return getpid() != process_; }

}  // namespace outrider
