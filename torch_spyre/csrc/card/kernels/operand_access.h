// Elements of an operand: where a run of them lies, and how tile operations see them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "card/kernels/compute.h"

namespace spyre {

// How an operand's address moves along one dimension, in bytes.
struct Way {
  int64_t stride = 0;   // per point, or per stick
  int64_t stick = 0;    // elements of a stick; 0: no sticks, every point is one stride further
  int64_t element = 0;  // bytes of an element

  Way() = default;
  Way(int64_t stride, DataFormat format, bool sticks)
      : stride(stride), stick(sticks ? elements_per_stick(format) : 0), element(element_bytes(format)) {
    if (stick && stride == kStickBytes) *this = Way(element, format, false);  // one stick right after the other
  }
  int64_t at(int64_t point) const { return stick ? point / stick * stride + point % stick * element : point * stride; }
  // From a point on, so many points lie step() apart.
  int64_t even(int64_t point) const { return stick ? stick - point % stick : std::numeric_limits<int64_t>::max(); }
  int64_t step() const { return stick ? element : stride; }
  bool dense() const { return step() == element; }
};

// A constant as integer operations see it; the least and the greatest number stand for infinities.
inline int64_t integer_of(double value) {
  using Limits = std::numeric_limits<int64_t>;
  return value >= 0x1p63 ? Limits::max() : value < -0x1p63 ? Limits::min() : static_cast<int64_t>(value);
}

// Reads and writes elements of an operand: fp32 or int64 on the side of tile operations.
class Access {
 public:
  const DataFormat format;
  const Domain domain;
  std::byte* const address;  // of point 0; null for a constant

  Access(const Operand& operand, std::byte* base)
      : format(operand.format),
        domain(domain_of(format)),
        address(operand.is_constant() ? nullptr : base + operand.offset),
        value_(operand.value),
        element_(element_bytes(format)),
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

 private:
  static constexpr int64_t kPacked = 1024;
  double value_;
  int64_t element_;
  Convert decode_, encode_;

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
    element_ == 1   ? strided<uint8_t>(to, to_step, from, from_step, count)
    : element_ == 2 ? strided<uint16_t>(to, to_step, from, from_step, count)
                    : strided<uint32_t>(to, to_step, from, from_step, count);
  }

  void decode_reals(float* to, int64_t at, int64_t count, int64_t step) const {
    if (!address) return void(std::fill_n(to, count, static_cast<float>(value_)));
    if (step == element_) return void(decode_(to, address + at, count));
    alignas(64) std::byte packed[kPacked * sizeof(float)];
    for (int64_t done = 0; done < count; done += kPacked) {
      const int64_t some = std::min(kPacked, count - done);
      move(packed, element_, address + at + done * step, step, some);
      decode_(to + done, packed, some);
    }
  }

  bool encode_reals(const float* from, int64_t at, int64_t count, int64_t step) const {
    if (step == element_) return encode_(address + at, from, count);
    alignas(64) std::byte packed[kPacked * sizeof(float)];
    for (int64_t done = 0; done < count; done += kPacked) {
      const int64_t some = std::min(kPacked, count - done);
      encode_(packed, from + done, some);
      move(address + at + done * step, step, packed, element_, some);
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

// Cuts `count` points from `begin` on into runs, of at most `most`, in which every way goes on evenly.
template <typename Body>
void even_runs(int64_t begin, int64_t count, int64_t most, std::initializer_list<const Way*> ways, const Body& body) {
  for (int64_t point = begin, run; point < begin + count; point += run) {
    run = std::min(most, begin + count - point);
    for (const Way* way : ways) run = std::min(run, way->even(point));
    body(point, run);
  }
}

}  // namespace spyre
