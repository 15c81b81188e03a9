#include "kernel.h"

#include <stdexcept>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace outrider {

using Product = void(const std::int8_t*, int, int, const std::int8_t*, const std::int32_t*, int,
                     std::int32_t*);

extern const RowFunctions rows_portable;
Product product_portable;

#if defined(OUTRIDER_X86)
extern const RowFunctions rows_avx2, rows_avx512;
Product product_avx2, product_vnni, product_amx;
#elif defined(OUTRIDER_ARM)
Product product_neon;
#endif

namespace {

#if defined(OUTRIDER_X86)
bool has_avx2() { return __builtin_cpu_supports("avx2"); }

bool has_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// CPUID leaf 7 names AMX-tile (bit 24 of EDX) and AMX-int8 (bit 25); Linux must also be asked for
// the tiles' place in a thread's saved state, once in a process.
bool has_amx() {
#if defined(__linux__)
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  if (!has_vnni() || (edx >> 24 & 3u) != 3u) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(OUTRIDER_ARM)
bool has_dot_product() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every Apple machine that runs 64-bit ARM code has it
#endif
}
#endif

std::vector<Kernel> find_all() {
  std::vector<Kernel> found;
#if defined(OUTRIDER_X86)
  if (has_amx()) found.push_back({"amx", product_amx, &rows_avx512});
  if (has_vnni()) found.push_back({"vnni", product_vnni, &rows_avx512});
  if (has_avx2()) found.push_back({"avx2", product_avx2, &rows_avx2});
#elif defined(OUTRIDER_ARM)
  if (has_dot_product()) found.push_back({"neon", product_neon, &rows_portable});
#endif
  found.push_back({"portable", product_portable, &rows_portable});
  return found;
}

const std::vector<Kernel>& all_kernels() {
  static const std::vector<Kernel> found = find_all();  // facts about the machine, never changed
  return found;
}

}  // namespace

std::vector<std::string> available_kernels() {
  std::vector<std::string> names;
  for (const Kernel& kernel : all_kernels()) names.emplace_back(kernel.name);
  return names;
}

const Kernel& find_kernel(const std::string& name) {
  const std::vector<Kernel>& kernels = all_kernels();
  if (name.empty()) return kernels.front();
  std::string known;
  for (const Kernel& kernel : kernels) {
    if (name == kernel.name) return kernel;
    known += known.empty() ? "" : ", ";
    known += kernel.name;
  }
  throw std::invalid_argument("instruction set '" + name + "' is not there; this machine has " +
                              known);
}

}  // namespace outrider
