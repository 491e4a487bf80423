#include "card/numeric/formats.h"

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "card/error.h"
#include "card/numeric/narrow_floats.h"
#include "card/numeric/sen169.h"
#include "card/numeric/simd.h"

namespace spyre {
namespace {

struct FormatRow {
  const char* name;
  int64_t bytes;
};
constexpr FormatRow kFormats[] = {
    {"SEN169_FP16", 2}, {"IEEE_FP32", 4},  {"INVALID", 0},    {"SEN143_FP8", 1},  {"SEN152_FP8", 1},
    {"SEN153_FP9", 0},  {"SENINT2", 0},    {"SENINT4", 0},    {"SENINT8", 1},     {"SENINT16", 2},
    {"SENINT24", 0},    {"IEEE_INT64", 0}, {"IEEE_INT32", 4}, {"SENUINT32", 4},   {"SENUINT2", 0},
    {"IEEE_FP16", 0},   {"BOOL", 0},       {"BFLOAT16", 0},   {"SEN18F_FP24", 0},
};
constexpr size_t kFormatCount = sizeof(kFormats) / sizeof(kFormats[0]);
static_assert(kFormatCount == size_t(DataFormat::SEN18F_FP24) + 1);

struct TypeRow {
  const char* name;
  int64_t bytes;
  DataFormat format;
};
constexpr TypeRow kTypes[] = {
    {"float16", 2, DataFormat::SEN169_FP16},    {"bfloat16", 2, DataFormat::SEN169_FP16},
    {"float32", 4, DataFormat::IEEE_FP32},      {"float8_e4m3fn", 1, DataFormat::SEN143_FP8},
    {"float8_e5m2", 1, DataFormat::SEN152_FP8}, {"int8", 1, DataFormat::SENINT8},
    {"int16", 2, DataFormat::SENINT16},         {"uint8", 1, DataFormat::SENUINT32},
    {"int32", 4, DataFormat::IEEE_INT32},       {"int64", 8, DataFormat::IEEE_INT32},
    {"bool", 1, DataFormat::SEN169_FP16},
};
static_assert(sizeof(kTypes) / sizeof(kTypes[0]) == kHostTypes);

const FormatRow& row(DataFormat format) {
  const size_t i = size_t(format);
  return kFormats[i < kFormatCount ? i : size_t(DataFormat::INVALID)];
}
const TypeRow& row(HostType type) { return kTypes[size_t(type)]; }

// The living definition: every conversion, for one value. Selections instead of branches let the compiler vectorise
// each as it stands, and no arithmetic touches fp32 subnormals, so the bits depend neither on the instruction set nor
// on the flush-to-zero mode of the thread.

#pragma GCC push_options
// Trapping floats and threaded jumps would turn selections back into branches.
#pragma GCC optimize("no-trapping-math,no-thread-jumps")

using narrow_floats::bits_of, sen169::kFloatMagnitude;

using narrow_floats::BFloat, narrow_floats::E4M3, narrow_floats::E5M2, narrow_floats::Half;

SPYRE_INLINE uint16_t f16_in(uint16_t half) {
  return sen169::encode<sen169::kLargestHalf, sen169::kLargestHalf>(Half::decode(half));
}
SPYRE_INLINE uint16_t f16_out(uint16_t code) { return Half::encode(sen169::decode(code)); }
SPYRE_INLINE uint16_t bf16_in(uint16_t bfloat) {
  return sen169::encode<sen169::kLargest, sen169::kLargest>(BFloat::decode(bfloat));
}
// Finite values that bf16_in makes the largest number, or zero. As unsigned numbers zeros are none of the latter.
constexpr uint16_t kBf16Past = 0x5000, kBf16Inf = 0x7f80, kBf16Tiny = 0x2f80;  // 2^33, inf, 2^-32
SPYRE_INLINE bool bf16_saturates(uint16_t magnitude) { return uint16_t(magnitude - kBf16Past) < kBf16Inf - kBf16Past; }
SPYRE_INLINE bool bf16_vanishes(uint16_t magnitude) { return uint16_t(magnitude - 1) < kBf16Tiny; }
SPYRE_INLINE uint16_t bf16_out(uint16_t code) { return BFloat::encode(sen169::decode(code)); }
SPYRE_INLINE uint16_t bool_in(uint8_t value) { return value != 0 ? sen169::kOne : 0; }
SPYRE_INLINE uint8_t bool_out(uint16_t code) { return (code & 0x7fff) != 0; }
SPYRE_INLINE uint32_t u8_in(uint8_t value) { return value; }
SPYRE_INLINE uint8_t u8_out(uint32_t value) { return uint8_t(value); }
SPYRE_INLINE int64_t i64_out(int32_t value) { return value; }

// The value a type's code on the card stands for, float or int32_t, and back.
template <HostType>
struct Card;
template <>
struct Card<HostType::F16> {
  SPYRE_INLINE static float read(uint16_t code) { return sen169::decode(code); }
  SPYRE_INLINE static uint16_t write(float value) { return sen169::encode(value); }
};
template <>
struct Card<HostType::F32> {
  SPYRE_INLINE static float read(float value) { return value; }
  SPYRE_INLINE static float write(float value) { return value; }
};
template <>
struct Card<HostType::F8E4M3> {
  SPYRE_INLINE static float read(uint8_t code) { return E4M3::decode(code); }
  SPYRE_INLINE static uint8_t write(float value) { return E4M3::encode(value); }
};
template <>
struct Card<HostType::F8E5M2> {
  SPYRE_INLINE static float read(uint8_t code) { return E5M2::decode(code); }
  SPYRE_INLINE static uint8_t write(float value) { return E5M2::encode(value); }
};
template <class Code>
struct Integer {
  SPYRE_INLINE static int32_t read(Code value) { return int32_t(value); }
  SPYRE_INLINE static Code write(int32_t value) { return Code(value); }
};
template <>
struct Card<HostType::I8> : Integer<int8_t> {};
template <>
struct Card<HostType::I16> : Integer<int16_t> {};
template <>
struct Card<HostType::I32> : Integer<int32_t> {};
template <>
struct Card<HostType::I64> : Integer<int32_t> {};
template <>
struct Card<HostType::U8> {
  SPYRE_INLINE static int32_t read(uint32_t value) { return u8_out(value); }
  SPYRE_INLINE static uint32_t write(int32_t value) { return uint8_t(value); }
};
template <>
struct Card<HostType::Bool> {
  SPYRE_INLINE static int32_t read(uint16_t code) { return bool_out(code); }
  SPYRE_INLINE static uint16_t write(int32_t value) { return bool_in(value != 0); }
};

SPYRE_INLINE bool fits_int32(float value) { return (value >= -0x1p31f) & (value < 0x1p31f); }

template <class To, class From>
SPYRE_INLINE To as(From value) {
  return To(value);
}
// As PyTorch does on x86: NaN and what 32 bits cannot hold give INT32_MIN, of which narrower types keep the low bits.
template <>
SPYRE_INLINE int32_t as<int32_t, float>(float value) {
  return int32_t(fits_int32(value) ? value : -0x1p31f);
}
// As a destination int64 saturates at the ends of its 32 bits: x86's least number would not be the host's either.
SPYRE_INLINE int32_t saturated(float value) { return value >= 0x1p31f ? INT32_MAX : as<int32_t>(value); }

// Types that share codes on the card share the routines of one of them. As a destination int64 differs: it saturates.
constexpr HostType source_like(HostType type) {
  return type == HostType::BF16 ? HostType::F16 : type == HostType::I64 ? HostType::I32 : type;
}
constexpr HostType target_like(HostType type) { return type == HostType::BF16 ? HostType::F16 : type; }

template <auto f>
struct Signature;
template <class D, class S, D (*f)(S)>
struct Signature<f> {
  using To = D;
  using From = S;
};

template <int bytes>
bool copy(void* dst, const void* src, size_t n) {
  if (n != 0) std::memcpy(dst, src, n * bytes);
  return true;
}

struct Transfer {
  Convert in, out;
};
struct FormatTable {
  const char* name;
  bool (*loses_bf16)(const void* values, size_t n);
  Transfer transfers[kHostTypes];
  Convert casts[kHostTypes * kHostTypes];
};

#define SPYRE_SIMD_BODY "card/numeric/formats_simd.inc"
#include "card/numeric/for_each_isa.inc"
#undef SPYRE_SIMD_BODY
#pragma GCC pop_options

constexpr const FormatTable* kTables[] = SPYRE_EACH_ISA(kTable);

const FormatTable& table() { return chosen_table<kTables>(); }
// Throws ConfigurationError when the machine lacks the set.
const FormatTable& table_named(const char* isa) {
  require_isa(isa);
  return table_of(kTables, isa);
}

const Transfer& transfer(const FormatTable& table, HostType type) { return table.transfers[size_t(type)]; }
Convert cast(const FormatTable& table, HostType from, HostType to) {
  return table.casts[size_t(from) * kHostTypes + size_t(to)];
}

}  // namespace

const char* name(DataFormat format) { return row(format).name; }
const char* name(HostType type) { return row(type).name; }
int64_t element_bytes(DataFormat format) { return row(format).bytes; }
int64_t elements_per_stick(DataFormat format) {
  const int64_t bytes = element_bytes(format);
  return bytes == 0 ? 0 : kStickBytes / bytes;
}
int64_t host_bytes(HostType type) { return row(type).bytes; }
DataFormat format_of(HostType type) { return row(type).format; }

namespace {

template <class Better>
void improve(std::atomic<uint16_t>& best, uint16_t value, Better better) {
  uint16_t now = best;
  while (better(value, now) && !best.compare_exchange_weak(now, value)) {
  }
}

}  // namespace

void Bf16Losses::look_at(const void* values, size_t n) {
  if (!table().loses_bf16(values, n)) return;
  for (size_t i = 0; i < n; ++i) {
    const uint16_t magnitude = load_at<uint16_t>(static_cast<const char*>(values), i) & 0x7fff;
    if (bf16_saturates(magnitude)) {
      ++saturated_;
      improve(largest_, magnitude, std::greater<>());
    } else if (bf16_vanishes(magnitude)) {
      ++vanished_;
      improve(smallest_, magnitude, std::less<>());
    }
  }
}
float Bf16Losses::largest() const { return BFloat::decode(largest_); }
float Bf16Losses::smallest() const { return BFloat::decode(smallest_); }

Convert host_to_device(HostType type) { return transfer(table(), type).in; }
Convert device_to_host(HostType type) { return transfer(table(), type).out; }
Convert device_cast(HostType from, HostType to) { return cast(table(), from, to); }

uint16_t sen169_from_float(float value) { return sen169::encode(value); }
float sen169_to_float(uint16_t code) { return sen169::decode(code); }

// For tests: the conversions of one instruction set, refused like SPYRE_SIMD when the machine lacks it.
namespace detail {
bool loses_bf16(const char* simd, const void* values, size_t n) { return table_named(simd).loses_bf16(values, n); }
Convert host_to_device(const char* simd, HostType type) { return transfer(table_named(simd), type).in; }
Convert device_to_host(const char* simd, HostType type) { return transfer(table_named(simd), type).out; }
Convert device_cast(const char* simd, HostType from, HostType to) { return cast(table_named(simd), from, to); }
}  // namespace detail

}  // namespace spyre
