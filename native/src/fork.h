// A forked child has the parent's memory but only the thread that forked.
#pragma once

#include <mutex>

namespace outrider {

// Guards shared free lists and tables, held briefly. pthread_atfork locks it during a fork, so that
// a child never inherits it locked by a thread it does not have.
std::mutex& fork_safe_mutex();

// The process that created it; `forked` is true in a child forked later.
class OwnerProcess {
 public:
  OwnerProcess();
  bool forked() const;

 private:
  const long id_;
};

}  // namespace outrider
