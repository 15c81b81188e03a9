#include "fork.h"

#if !defined(_WIN32)
#include <pthread.h>
#include <unistd.h>

#include <new>
#endif

namespace outrider {
namespace {

std::mutex shared_mutex;

}  // namespace

#if defined(_WIN32)  // no fork

std::mutex& fork_safe_mutex() { return shared_mutex; }

OwnerProcess::OwnerProcess() : id_(0) {}

bool OwnerProcess::forked() const { return false; }

#else

std::mutex& fork_safe_mutex() {
  static const bool registered = [] {
    const auto release = [] { shared_mutex.unlock(); };
    if (pthread_atfork([] { shared_mutex.lock(); }, release, release) != 0) throw std::bad_alloc();
    return true;
  }();
  static_cast<void>(registered);
  return shared_mutex;
}

OwnerProcess::OwnerProcess() : id_(getpid()) {}

bool OwnerProcess::forked() const { return getpid() != id_; }

#endif

}  // namespace outrider
