// The address of an operand along one dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "card/numeric/formats.h"

namespace spyre {

// How an operand's address moves along one dimension, in bytes.
struct AxisStride {
  int64_t stride = 0;   // per point, or per stick
  int64_t stick = 0;    // elements of a stick; 0: no sticks, every point is one stride further
  int64_t element = 0;  // bytes of an element

  AxisStride() = default;
  AxisStride(int64_t stride, DataFormat format, bool sticks)
      : stride(stride), stick(sticks ? elements_per_stick(format) : 0), element(element_bytes(format)) {
    if (stick && stride == kStickBytes) *this = AxisStride(element, format, false);  // sticks without gaps
  }
  int64_t at(int64_t point) const { return stick ? point / stick * stride + point % stick * element : point * stride; }
  // How many points from this one on are step() bytes apart.
  int64_t even(int64_t point) const { return stick ? stick - point % stick : std::numeric_limits<int64_t>::max(); }
  int64_t step() const { return stick ? element : stride; }
  bool dense() const { return step() == element; }
};

// Splits `count` points from `begin` on into runs, of at most `most`, in which all strides are even.
template <typename Body>
void even_runs(int64_t begin, int64_t count, int64_t most, std::initializer_list<const AxisStride*> strides,
               const Body& body) {
  for (int64_t point = begin, run; point < begin + count; point += run) {
    run = std::min(most, begin + count - point);
    for (const AxisStride* stride : strides) run = std::min(run, stride->even(point));
    body(point, run);
  }
}

}  // namespace spyre
