// The parts of core_test.
#pragma once

#include <cstdint>

namespace outrider {

void check_kernels(std::uint64_t seed);
void check_screens(std::uint64_t seed);
void check_weights();
void check_teams(std::uint64_t seed);
void check_models(std::uint64_t seed);
void check_files(std::uint64_t seed);
void check_batches(std::uint64_t seed);
void fuzz(double seconds, std::uint64_t seed);

}  // namespace outrider
