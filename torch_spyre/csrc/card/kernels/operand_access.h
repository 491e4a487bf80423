// Reads and writes runs of an operand's elements, in the form that tile operations see them: fp32 or int64.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "card/numeric/formats.h"
#include "card/program/program.h"
#include "card/program/step_ops.h"

namespace spyre {

// A constant as integer operations see it; the least and the greatest number stand for infinities.
inline int64_t integer_of(double value) {
  using Limits = std::numeric_limits<int64_t>;
  return value >= 0x1p63 ? Limits::max() : value < -0x1p63 ? Limits::min() : static_cast<int64_t>(value);
}

class OperandAccess {
 public:
  const DataFormat format;
  const Domain domain;
  const int64_t element;     // bytes of one
  std::byte* const address;  // of point 0; null for a constant

  OperandAccess(const Operand& operand, std::byte* base)
      : OperandAccess(operand.format, operand.is_constant() ? nullptr : base + operand.offset, operand.value) {}
  OperandAccess(DataFormat format, std::byte* address, double value = 0)
      : format(format),
        domain(domain_of(format)),
        element(element_bytes(format)),
        address(address),
        value_(value),
        decode_(device_cast(host_type(), HostType::F32)),
        encode_(device_cast(HostType::F32, host_type())) {}

  // `count` elements, `step` bytes apart.
  void decode(void* to, int64_t at, int64_t count, int64_t step) const {
    if (domain == Domain::real) return decode_reals(static_cast<float*>(to), at, count, step);
    auto* values = static_cast<int64_t*>(to);
    if (!address) return void(std::fill_n(values, count, integer_of(value_)));
    switch (format) {
      case DataFormat::SENINT8:
        return widen<int8_t>(values, at, count, step);
      case DataFormat::SENINT16:
        return widen<int16_t>(values, at, count, step);
      case DataFormat::SENUINT32:
        return widen<uint32_t>(values, at, count, step);
      default:
        return widen<int32_t>(values, at, count, step);
    }
  }

  // False when an integer does not fit; its low bits are written then.
  bool encode(const void* from, int64_t at, int64_t count, int64_t step) const {
    if (domain == Domain::real) return encode_reals(static_cast<const float*>(from), at, count, step);
    const auto* values = static_cast<const int64_t*>(from);
    switch (format) {
      case DataFormat::SENINT8:
        return narrow<int8_t, int8_t>(values, at, count, step);
      case DataFormat::SENINT16:
        return narrow<int16_t, int16_t>(values, at, count, step);
      case DataFormat::SENUINT32:  // uint8 in four bytes
        return narrow<uint32_t, uint8_t>(values, at, count, step);
      default:
        return narrow<int32_t, int32_t>(values, at, count, step);
    }
  }

  // `rows` rows of `count` elements, one after the other in `to`; `row_step` bytes apart, their elements `step`.
  void decode_rows(void* to, int64_t at, int64_t rows, int64_t row_step, int64_t count, int64_t step) const {
    if (row_step == count * step) return decode(to, at, rows * count, step);
    for (int64_t row = 0; row < rows; ++row)
      decode(static_cast<std::byte*>(to) + row * count * decoded_bytes(), at + row * row_step, count, step);
  }
  bool encode_rows(const void* from, int64_t at, int64_t rows, int64_t row_step, int64_t count, int64_t step) const {
    if (row_step == count * step) return encode(from, at, rows * count, step);
    bool fits = true;
    for (int64_t row = 0; row < rows; ++row)
      fits &=
          encode(static_cast<const std::byte*>(from) + row * count * decoded_bytes(), at + row * row_step, count, step);
    return fits;
  }

 private:
  static constexpr int64_t kPacked = 1024;
  double value_;
  Convert decode_, encode_;

  int64_t decoded_bytes() const { return domain == Domain::real ? sizeof(float) : sizeof(int64_t); }
  HostType host_type() const {
    switch (format) {
      case DataFormat::SEN169_FP16:
        return HostType::F16;
      case DataFormat::SEN143_FP8:
        return HostType::F8E4M3;
      case DataFormat::SEN152_FP8:
        return HostType::F8E5M2;
      default:
        return HostType::F32;
    }
  }

  template <typename Stored>
  static void strided(std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      *reinterpret_cast<Stored*>(to + i * to_step) = *reinterpret_cast<const Stored*>(from + i * from_step);
  }
  void move(std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step, int64_t count) const {
    element == 1   ? strided<uint8_t>(to, to_step, from, from_step, count)
    : element == 2 ? strided<uint16_t>(to, to_step, from, from_step, count)
                   : strided<uint32_t>(to, to_step, from, from_step, count);
  }

  void decode_reals(float* to, int64_t at, int64_t count, int64_t step) const {
    if (!address) return void(std::fill_n(to, count, static_cast<float>(value_)));
    if (step == element) return void(decode_(to, address + at, count));
    if (step == 0 && count > 1) {
      decode_(to, address + at, 1);
      return void(std::fill_n(to + 1, count - 1, to[0]));
    }
    alignas(64) std::byte packed[kPacked * sizeof(float)];
    for (int64_t done = 0; done < count; done += kPacked) {
      const int64_t some = std::min(kPacked, count - done);
      move(packed, element, address + at + done * step, step, some);
      decode_(to + done, packed, some);
    }
  }

  bool encode_reals(const float* from, int64_t at, int64_t count, int64_t step) const {
    if (step == element) return encode_(address + at, from, count);
    alignas(64) std::byte packed[kPacked * sizeof(float)];
    for (int64_t done = 0; done < count; done += kPacked) {
      const int64_t some = std::min(kPacked, count - done);
      encode_(packed, from + done, some);
      move(address + at + done * step, step, packed, element, some);
    }
    return true;
  }

  template <typename Stored>
  void widen(int64_t* to, int64_t at, int64_t count, int64_t step) const {
    for (int64_t i = 0; i < count; ++i) to[i] = *reinterpret_cast<const Stored*>(address + at + i * step);
  }

  template <typename Stored, typename Kept>
  bool narrow(const int64_t* from, int64_t at, int64_t count, int64_t step) const {
    bool fits = true;
    for (int64_t i = 0; i < count; ++i) {
      const auto kept = static_cast<Kept>(from[i]);
      *reinterpret_cast<Stored*>(address + at + i * step) = kept;
      fits &= from[i] == static_cast<int64_t>(kept);
    }
    return fits;
  }
};

}  // namespace spyre
