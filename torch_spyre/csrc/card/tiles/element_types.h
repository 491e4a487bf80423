// Element types of tiles in a tile program: how they are stored in memory, and how they are held while a core computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace spyre::tiles {

// Halves are IEEE's (f16) or the card's (sen169): a program says which. `index` of the IR is i64.
enum class ElementType : uint8_t { f16, sen169, bf16, f32, i1, i8, i16, i32, i64 };
constexpr int kElementTypes = 9;

const char* name(ElementType type);
ElementType element_type(const std::string& name);  // throws InvalidProgram
int64_t bytes_of(ElementType type);                 // of one element in memory

// Reals and truth values are held as fp32, integers as int64, exactly as tile operations take them.
inline bool is_real(ElementType type) { return type <= ElementType::i1; }
inline int64_t held_bytes(ElementType type) { return is_real(type) ? sizeof(float) : sizeof(int64_t); }

// Elements `step` bytes apart in memory, which need not be aligned.
void decode(ElementType type, void* to, const std::byte* from, int64_t count, int64_t step);
void encode(ElementType type, std::byte* to, const void* from, int64_t count, int64_t step);

// Rounds held values to what the type can hold, staying as they are held; integers wrap.
void round_to(ElementType type, void* values, int64_t count);

// The bits of an element of `from` read as one of `to`, which has the same size.
void bitcast(ElementType to, void* out, ElementType from, const void* in, int64_t count);

}  // namespace spyre::tiles
