// Tests of the core without Python, so that sanitizers check the core only.
//
//     core_test [--seed N]                   every check, a few seconds
//     core_test --fuzz SECONDS [--seed N]    random valid and invalid calls
#include "check.h"
#include "checks.h"
#include "kernel/kernel.h"

#include <cstdlib>
#include <cstring>

int main(int count, char** values) {
  double seconds = 0.0;
  std::uint64_t seed = 0;
  for (int i = 1; i < count; i += 2) {
    const bool fuzz = std::strcmp(values[i], "--fuzz") == 0;
    if ((!fuzz && std::strcmp(values[i], "--seed") != 0) || i + 1 == count) {
      std::fprintf(stderr, "usage: core_test [--fuzz SECONDS] [--seed N]\n");
      return 2;
    }
    if (fuzz)
      seconds = std::atof(values[i + 1]);
    else
      seed = std::strtoull(values[i + 1], nullptr, 10);
  }
  std::printf("instruction sets:");
  for (const std::string& name : outrider::available_kernels()) std::printf(" %s", name.c_str());
  std::printf("\n");
  std::fflush(stdout);  // otherwise a forked process prints it again
  if (seconds > 0.0) {
    outrider::fuzz(seconds, seed);
  } else {
#ifndef __SANITIZE_THREAD__  // these start no threads
    outrider::check_kernels(seed);
    outrider::check_screens(seed);
    outrider::check_weights();
#endif
    outrider::check_teams(seed);
    outrider::check_models(seed);
    outrider::check_files(seed);
    outrider::check_batches(seed);
  }
  const outrider::Tally& tally = outrider::tally();
  std::printf("%ld checks passed, %ld failed\n", tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}
