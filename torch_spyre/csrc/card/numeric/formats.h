// Number formats of the card, the host's element types, and exact conversion between them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spyre {

// Values are the vendor's; only the formats marked with a host type below are stored by this card.
enum class DataFormat : uint8_t {
  SEN169_FP16 = 0,
  IEEE_FP32 = 1,
  INVALID = 2,
  SEN143_FP8 = 3,
  SEN152_FP8 = 4,
  SEN153_FP9 = 5,
  SENINT2 = 6,
  SENINT4 = 7,
  SENINT8 = 8,
  SENINT16 = 9,
  SENINT24 = 10,
  IEEE_INT64 = 11,
  IEEE_INT32 = 12,
  SENUINT32 = 13,
  SENUINT2 = 14,
  IEEE_FP16 = 15,
  BOOL = 16,
  BFLOAT16 = 17,
  SEN18F_FP24 = 18,
};

// Element types a host tensor may have (PyTorch's dtypes, without PyTorch).
enum class HostType : uint8_t { F16, BF16, F32, F8E4M3, F8E5M2, I8, I16, U8, I32, I64, Bool };
constexpr int kHostTypes = 11;

// A stick, the unit of memory and of the vector units. The card checks its hardware description against this. It is a
// constant because conversions, tiles and register blocks are compiled for it: another width takes a build with another
// value here, tiles of kRow elements (fusion/threaded_ops.h) that fill the registers of each instruction set, and
// kPanel, kIntegerPanel and the formats' kStick in kernels/matmul.
constexpr int64_t kStickBytes = 128;

const char* name(DataFormat);
const char* name(HostType);

// Bytes of one element in device memory; 0 for formats this card does not store.
int64_t element_bytes(DataFormat);
// Elements of a stick; 0 for formats this card does not store.
int64_t elements_per_stick(DataFormat);
int64_t host_bytes(HostType);
// The format a host type has on the card.
DataFormat format_of(HostType);

// Converts n contiguous elements. Returns false when some value cannot be represented (an int64 outside
// 32 bits, a computed integer outside its type): the destination is then unspecified, never silently wrong.
using Convert = bool (*)(void* dst, const void* src, size_t n);

// A transfer: same type on both sides, number format changed. Never null.
Convert host_to_device(HostType);
Convert device_to_host(HostType);
// A cast on the card, between the formats of two host types, with PyTorch's cast semantics. Never null.
Convert device_cast(HostType from, HostType to);

// What a transfer to the card loses of finite bf16 values. SEN169 has a smaller range: magnitudes from 2^33 on become
// its largest number, those up to 2^-32 become zero. Several threads may look at values at a time.
class Bf16Losses {
 public:
  void look_at(const void* values, size_t n);
  int64_t saturated() const { return saturated_; }
  int64_t vanished() const { return vanished_; }
  float largest() const;   // magnitude of those that saturated
  float smallest() const;  // magnitude of those that vanished

 private:
  std::atomic<int64_t> saturated_{0}, vanished_{0};
  std::atomic<uint16_t> largest_{0}, smallest_{0x7fff};  // bits
};

// One SEN169 value, for constants, tests and tools.
uint16_t sen169_from_float(float value);  // as an op rounds: nearest, ties away, past the largest finite code is inf
float sen169_to_float(uint16_t code);

}  // namespace spyre
