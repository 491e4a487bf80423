// Instruction sets. A file with vector code keeps its loops in a `*_simd.inc`, which for_each_isa.inc compiles once for
// each set; a table of functions for each set comes out, and the machine's best one is chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A definition that is not inlined into its loop keeps the loop scalar.
#define SPYRE_INLINE inline __attribute__((always_inline))
// Values that must stay in registers are arrays, and loops over them have constant bounds.
#define SPYRE_UNROLL _Pragma("GCC unroll 16")

// The objects of one name that for_each_isa.inc has made, best first.
#if defined(__x86_64__)
#define SPYRE_EACH_ISA(table) {&avx512::table, &avx2::table, &portable::table}
#else
#define SPYRE_EACH_ISA(table) {&portable::table}
#endif

namespace spyre {

// The instruction set in use: "avx512", "avx2" or "portable". SPYRE_SIMD forces one that the machine has.
const char* simd_level();
// Throws ConfigurationError, which names SPYRE_SIMD, for a set that the machine lacks or that does not exist.
void require_isa(const std::string& isa);
bool has_isa(const char* isa);

// The table of one set, of those that SPYRE_EACH_ISA lists; each has a `name`.
template <class Table, size_t count>
const Table& table_of(const Table* const (&tables)[count], const char* isa) {
  for (const Table* table : tables)
    if (!std::strcmp(table->name, isa)) return *table;
  return *tables[count - 1];
}

// The table of the set in use.
template <const auto& tables>
const auto& chosen_table() {
  static const auto& chosen = table_of(tables, simd_level());
  return chosen;
}

// Element i of an array that need not be aligned.
template <class T>
SPYRE_INLINE T load_at(const char* data, size_t i) {
  T value;
  __builtin_memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
SPYRE_INLINE void store_at(char* data, size_t i, T value) {
  __builtin_memcpy(data + i * sizeof(T), &value, sizeof(T));
}

}  // namespace spyre
