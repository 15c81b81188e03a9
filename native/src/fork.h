// What survives a fork: the memory, and of all threads only the one that forked.
#pragma once

#include <mutex>

namespace outrider {

// Guards what calls share, for moments only. A fork waits for it, so that a child never finds it
// held by a thread that is not there.
std::mutex& records();

// Tells the process that made it from one that was forked off later.
class Birthplace {
 public:
  Birthplace();
  bool left() const;

 private:
  const long process_;
};

}  // namespace outrider
