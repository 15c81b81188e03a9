#include "kernel.h"

#include <stdexcept>

#if defined(OUTRIDER_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(OUTRIDER_ARM) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(OUTRIDER_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace outrider {

extern const RowFunctions rows_portable;
Product product_portable;
NibbleProduct nibbles_portable;

#if defined(OUTRIDER_X86)
extern const RowFunctions rows_avx2, rows_avx512;
Product product_avx2, product_avx512, product_avxvnni, product_vnni256, product_vnni, product_amx;
NibbleProduct nibbles_avx2, nibbles_avx512, nibbles_vnni;
#elif defined(OUTRIDER_ARM)
Product product_neon, product_i8mm;
#endif

namespace {

#if defined(OUTRIDER_X86)
// CPUID leaf 7, both subleaves, and the registers that the operating system saves.
struct Features {
  unsigned ebx = 0, ecx = 0, edx = 0, more = 0;
  unsigned saved = 0;

  Features() {
    unsigned eax = 0, other_b = 0, other_c = 0, other_d = 0;
    if (__get_cpuid(1, &eax, &other_b, &other_c, &other_d) == 0 || (other_c >> 27 & 1u) == 0)
      return;  // the system saves no wide registers
    unsigned high = 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
    if (eax >= 1) __get_cpuid_count(7, 1, &more, &other_b, &other_c, &other_d);
  }

  bool avx2() const { return saves(0x6) && has(ebx, 5); }
  // F, DQ, BW and VL.
  bool avx512() const {
    return avx2() && saves(0xe6) && has(ebx, 16) && has(ebx, 17) && has(ebx, 30) && has(ebx, 31);
  }
  bool vnni() const { return avx512() && has(ecx, 11); }               // the dot product of bytes
  bool avxvnni() const { return avx2() && has(more, 4); }              // the same, without AVX-512
  bool amx() const { return vnni() && has(edx, 24) && has(edx, 25); }  // tiles, and bytes in them

 private:
  static bool has(unsigned bits, int place) { return (bits >> place & 1u) != 0; }
  bool saves(unsigned registers) const { return (saved & registers) == registers; }
};

// Linux grants the use of tiles on request, once in a process.
bool may_use_tiles() {
#if defined(__linux__)
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
  return true;  // all 64-bit ARM machines of Apple have it
#endif
}

bool has_matrix_product() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#elif defined(__APPLE__)
  int found = 0;
  std::size_t size = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &size, nullptr, 0) == 0 && found != 0;
#else
  return false;
#endif
}
#endif

std::vector<Kernel> find_all() {
  std::vector<Kernel> found;
#if defined(OUTRIDER_X86)
  const Features machine;
  if (machine.amx() && may_use_tiles())
    found.push_back({"amx", product_amx, &rows_avx512, nibbles_vnni});
  if (machine.vnni()) found.push_back({"vnni", product_vnni, &rows_avx512, nibbles_vnni, true});
  if (machine.avxvnni() || machine.vnni()) {
    Product* const narrow = machine.avxvnni() ? product_avxvnni : product_vnni256;
    found.push_back({"avxvnni", narrow, &rows_avx2, nibbles_avx2, true});
  }
  if (machine.avx512()) found.push_back({"avx512", product_avx512, &rows_avx512, nibbles_avx512});
  if (machine.avx2()) found.push_back({"avx2", product_avx2, &rows_avx2, nibbles_avx2});
#elif defined(OUTRIDER_ARM)
  if (has_dot_product() && has_matrix_product())
    found.push_back({"i8mm", product_i8mm, &rows_portable});
  if (has_dot_product()) found.push_back({"neon", product_neon, &rows_portable});
#endif
  found.push_back({"portable", product_portable, &rows_portable, nibbles_portable});
  return found;
}

const std::vector<Kernel>& all_kernels() {
  static const std::vector<Kernel> found = find_all();  // properties of the machine
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
