#include "card/tiles/element_types.h"

#include <algorithm>
#include <cstring>

#include "card/error.h"
#include "card/numeric/narrow_floats.h"
#include "card/numeric/sen169.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_ops.h"

namespace spyre::tiles {
namespace {

#pragma GCC push_options
// Trapping floats and threaded jumps would turn selections back into branches, which are not vectorised.
#pragma GCC optimize("no-trapping-math,no-thread-jumps")

// Half::decode(Half::encode(value)) without leaving fp32.
SPYRE_INLINE float rounded_half(float value) {
  constexpr int kShift = 13;
  constexpr int32_t kLargest = 0x477fe000, kSmallestNormal = 0x38800000;
  const uint32_t bits = narrow_floats::bits_of(value);
  const int32_t magnitude = bits & sen169::kFloatMagnitude, odd = magnitude >> kShift & 1;
  int32_t nearest = int32_t((uint32_t(magnitude) + 0xfff + odd) & ~uint32_t{0x1fff});
  nearest = nearest > kLargest ? sen169::kFloatInf : nearest;
  const float subnormal = (narrow_floats::float_of(magnitude) + 0.5f) - 0.5f;  // the last place of 0.5 is 2^-24
  nearest = magnitude < kSmallestNormal ? int32_t(narrow_floats::bits_of(subnormal)) : nearest;
  nearest = magnitude > sen169::kFloatInf ? sen169::kFloatNan : nearest;
  return narrow_floats::float_of(uint32_t(nearest) | (bits & ~uint32_t{sen169::kFloatMagnitude}));
}

struct ConversionTable {
  const char* name;
  void (*decode_half)(float*, const uint16_t*, size_t);
  void (*encode_half)(uint16_t*, const float*, size_t);
  void (*decode_sen169)(float*, const uint16_t*, size_t);
  void (*encode_sen169)(uint16_t*, const float*, size_t);
  void (*decode_bfloat)(float*, const uint16_t*, size_t);
  void (*encode_bfloat)(uint16_t*, const float*, size_t);
  void (*round_half)(float*, size_t);
  void (*round_bfloat)(float*, size_t);
};

#define SPYRE_SIMD_BODY "card/tiles/element_types_simd.inc"
#include "card/numeric/for_each_isa.inc"
#undef SPYRE_SIMD_BODY
#pragma GCC pop_options

constexpr const ConversionTable* kTables[] = SPYRE_EACH_ISA(kTable);
const ConversionTable& table() { return chosen_table<kTables>(); }

struct TypeRow {
  const char* name;
  int64_t bytes;
};
constexpr TypeRow kTypes[kElementTypes] = {{"f16", 2}, {"sen169", 2}, {"bf16", 2}, {"f32", 4}, {"i1", 1},
                                           {"i8", 1},  {"i16", 2},    {"i32", 4},  {"i64", 8}};

void decode_reals(ElementType type, float* to, const std::byte* from, size_t n) {
  const auto* codes = reinterpret_cast<const uint16_t*>(from);
  switch (type) {
    case ElementType::f16:
      return table().decode_half(to, codes, n);
    case ElementType::sen169:
      return table().decode_sen169(to, codes, n);
    case ElementType::bf16:
      return table().decode_bfloat(to, codes, n);
    case ElementType::f32:
      std::memcpy(to, from, n * sizeof(float));
      return;
    default:
      for (size_t i = 0; i < n; ++i) to[i] = from[i] != std::byte{0} ? 1.0f : 0.0f;
  }
}

void encode_reals(ElementType type, std::byte* to, const float* from, size_t n) {
  auto* codes = reinterpret_cast<uint16_t*>(to);
  switch (type) {
    case ElementType::f16:
      return table().encode_half(codes, from, n);
    case ElementType::sen169:
      return table().encode_sen169(codes, from, n);
    case ElementType::bf16:
      return table().encode_bfloat(codes, from, n);
    case ElementType::f32:
      std::memcpy(to, from, n * sizeof(float));
      return;
    default:
      for (size_t i = 0; i < n; ++i) to[i] = std::byte{from[i] != 0};
  }
}

template <class Stored>
void widen(int64_t* to, const std::byte* from, int64_t count, int64_t step) {
  for (int64_t i = 0; i < count; ++i) to[i] = load_at<Stored>(reinterpret_cast<const char*>(from + i * step), 0);
}
template <class Stored>
void narrow(std::byte* to, const int64_t* from, int64_t count, int64_t step) {
  for (int64_t i = 0; i < count; ++i) store_at(reinterpret_cast<char*>(to + i * step), 0, static_cast<Stored>(from[i]));
}
template <class Stored>
void wrap(int64_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<Stored>(values[i]);
}

constexpr int64_t kPiece = 256;  // elements that are gathered before they are converted

}  // namespace

const char* name(ElementType type) { return kTypes[size_t(type)].name; }

ElementType element_type(const std::string& name) {
  for (int i = 0; i < kElementTypes; ++i)
    if (name == kTypes[i].name) return ElementType(i);
  throw InvalidProgram("there is no element type " + name);
}

int64_t bytes_of(ElementType type) { return kTypes[size_t(type)].bytes; }

void decode(ElementType type, void* to, const std::byte* from, int64_t count, int64_t step) {
  const int64_t bytes = bytes_of(type);
  auto* integers = static_cast<int64_t*>(to);
  switch (type) {
    case ElementType::i8:
      return widen<int8_t>(integers, from, count, step);
    case ElementType::i16:
      return widen<int16_t>(integers, from, count, step);
    case ElementType::i32:
      return widen<int32_t>(integers, from, count, step);
    case ElementType::i64:
      return widen<int64_t>(integers, from, count, step);
    default:
      break;
  }
  auto* reals = static_cast<float*>(to);
  if (step == bytes || count == 1) return decode_reals(type, reals, from, size_t(count));
  std::byte piece[kPiece * sizeof(float)];
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t length = std::min(kPiece, count - first);
    for (int64_t i = 0; i < length; ++i) std::memcpy(piece + i * bytes, from + (first + i) * step, size_t(bytes));
    decode_reals(type, reals + first, piece, size_t(length));
  }
}

void encode(ElementType type, std::byte* to, const void* from, int64_t count, int64_t step) {
  const int64_t bytes = bytes_of(type);
  const auto* integers = static_cast<const int64_t*>(from);
  switch (type) {
    case ElementType::i8:
      return narrow<int8_t>(to, integers, count, step);
    case ElementType::i16:
      return narrow<int16_t>(to, integers, count, step);
    case ElementType::i32:
      return narrow<int32_t>(to, integers, count, step);
    case ElementType::i64:
      return narrow<int64_t>(to, integers, count, step);
    default:
      break;
  }
  const auto* reals = static_cast<const float*>(from);
  if (step == bytes || count == 1) return encode_reals(type, to, reals, size_t(count));
  std::byte piece[kPiece * sizeof(float)];
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t length = std::min(kPiece, count - first);
    encode_reals(type, piece, reals + first, size_t(length));
    for (int64_t i = 0; i < length; ++i) std::memcpy(to + (first + i) * step, piece + i * bytes, size_t(bytes));
  }
}

void round_to(ElementType type, void* values, int64_t count) {
  auto* reals = static_cast<float*>(values);
  auto* integers = static_cast<int64_t*>(values);
  switch (type) {
    case ElementType::f16:
      return table().round_half(reals, size_t(count));
    case ElementType::sen169:
      return round_to_sen169(reals, size_t(count));
    case ElementType::bf16:
      return table().round_bfloat(reals, size_t(count));
    case ElementType::i8:
      return wrap<int8_t>(integers, count);
    case ElementType::i16:
      return wrap<int16_t>(integers, count);
    case ElementType::i32:
      return wrap<int32_t>(integers, count);
    default:
      return;
  }
}

void bitcast(ElementType to, void* out, ElementType from, const void* in, int64_t count) {
  const int64_t bytes = bytes_of(from);
  std::byte piece[kPiece * sizeof(int64_t)];
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t length = std::min(kPiece, count - first);
    encode(from, piece, static_cast<const std::byte*>(in) + first * held_bytes(from), length, bytes);
    decode(to, static_cast<std::byte*>(out) + first * held_bytes(to), piece, length, bytes);
  }
}

}  // namespace spyre::tiles
