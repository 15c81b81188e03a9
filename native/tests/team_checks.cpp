// Barriers and teams: many rounds, concurrent callers and forks. Also run under ThreadSanitizer.
#include "check.h"
#include "checks.h"
#include "team.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <numeric>

namespace outrider {
namespace {

// Every thread writes its place, waits, and reads all places: a race without a barrier.
void check_barrier(int threads, int rounds) {
  Barrier barrier(threads);
  std::vector<int> places(static_cast<std::size_t>(threads), 0);
  std::vector<int> wrong(static_cast<std::size_t>(threads), 0);
  std::vector<std::thread> all;
  for (int index = 0; index < threads; ++index)
    all.emplace_back([&, index] {
      for (int round = 1; round <= rounds; ++round) {
        places[static_cast<std::size_t>(index)] = round;
        barrier.wait();
        for (int place : places) wrong[static_cast<std::size_t>(index)] += place != round;
        barrier.wait();
      }
    });
  for (std::thread& one : all) one.join();
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

// Sums of sums: each step reads what other workers wrote in the previous step.
std::vector<long> steps(Team& team, int size, int count) {
  std::vector<long> left(static_cast<std::size_t>(size), 1), right(left);
  team.run([&](const Worker& worker) {
    const Range mine = worker.share(size);
    for (int step = 0; step < count; ++step) {
      const std::vector<long>& from = step % 2 == 0 ? left : right;
      std::vector<long>& to = step % 2 == 0 ? right : left;
      const long sum = std::accumulate(from.begin(), from.end(), 0L) % 1009;
      for (int i = mine.begin; i < mine.end; ++i) to[static_cast<std::size_t>(i)] = sum + i;
      worker.wait();
    }
  });
  return count % 2 == 0 ? left : right;
}

void check_callers(int threads, int callers, int calls) {
  Team team(threads);
  Team alone(1);
  CHECK(team.threads() == threads);
  std::vector<int> wrong(static_cast<std::size_t>(callers), 0);
  std::vector<std::thread> all;
  const std::vector<long> expected = steps(alone, 37, 9);
  for (int index = 0; index < callers; ++index)
    all.emplace_back([&, index] {
      for (int call = 0; call < calls; ++call)
        wrong[static_cast<std::size_t>(index)] += steps(team, 37, 9) != expected;
    });
  for (std::thread& one : all) one.join();
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

void check_shares(Dice& dice) {
  for (int round = 0; round < 50; ++round) {
    const int n = dice.pick(0, 100), count = dice.pick(1, 9);
    int next = 0;
    for (int index = 0; index < count; ++index) {
      const Range part = Worker{index, count, nullptr}.share(n);
      CHECK(part.begin == next && part.end >= part.begin);
      next = part.end;
    }
    CHECK(next == n);
  }
}

#if defined(_WIN32)
void check_fork(int) {}  // no fork
#else
// A forked process has none of the team's threads; it computes and exits without them.
void check_fork(int threads) {
  auto team = std::make_unique<Team>(threads);
  const std::vector<long> expected = steps(*team, 37, 9);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool right = steps(*team, 37, 9) == expected;
    team.reset();
    _exit(right ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(steps(*team, 37, 9) == expected);
}
#endif

}  // namespace

void check_teams(std::uint64_t seed) {
  Dice dice(seed);
  check_shares(dice);
  for (int threads : {2, 3, 4}) check_barrier(threads, 500);
  for (int threads : {1, 2, 4})
    for (int callers : {1, 3}) check_callers(threads, callers, 40);
  for (int threads : {1, 3}) check_fork(threads);
  for (int round = 0; round < 20; ++round) {  // a team may end before its threads start
    Team team(dice.pick(1, 4));
    if (dice.chance(0.5)) CHECK(steps(team, 5, 2).size() == 5);
  }
}

}  // namespace outrider
