#include "card/numeric/simd.h"

#include <cstdlib>

#include "card/error.h"

namespace spyre {

namespace {

struct Isa {
  const char* name;
  bool (*supported)();
};

constexpr Isa kAll[] = {
#if defined(__x86_64__)
    {"avx512",
     [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
     }},
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
    {"portable", [] { return true; }},
};

const Isa* find(const char* name) {
  for (const Isa& isa : kAll)
    if (!std::strcmp(isa.name, name)) return &isa;
  return nullptr;
}

const char* choose() {
  if (const char* wanted = std::getenv("SPYRE_SIMD"); wanted && *wanted) {
    require_isa(wanted);
    return find(wanted)->name;
  }
  for (const Isa& isa : kAll)
    if (isa.supported()) return isa.name;
  return "portable";
}

}  // namespace

bool has_isa(const char* name) {
  const Isa* isa = find(name);
  return isa && isa->supported();
}

void require_isa(const std::string& wanted) {
  if (has_isa(wanted.c_str())) return;
  std::string usable;
  for (const Isa& isa : kAll)
    if (isa.supported()) usable += (usable.empty() ? "" : ", ") + std::string(isa.name);
  throw ConfigurationError(
      "SPYRE_SIMD is \"" + wanted + "\", " +
      (find(wanted.c_str()) ? "which this machine does not have" : "which names no instruction set known here") +
      ": unset it or choose from " + usable + ".");
}

const char* simd_level() {
  static const char* const chosen = choose();
  return chosen;
}

}  // namespace spyre
