// What survives a fork: the memory, and of all threads only the one that forked.
#pragma once

#include <mutex>

namespace outrider {

// Guards what calls share (free buffers, sine tables), for moments only. A fork waits for it
// (pthread_atfork), so that a child never finds it held by a thread that it does not have.
std::mutex& fork_safe_mutex();

// The process that made it: whether a call comes from a child that was forked off later.
class OwnerProcess {
 public:
  OwnerProcess();
  bool forked() const;

 private:
  const long id_;
};

}  // namespace outrider
