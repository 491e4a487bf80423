// Rows of queries that attend to the same keys: the arithmetic of attention, whatever says which keys these are.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "card/kernels/matmul.h"
#include "card/kernels/operand_access.h"
#include "card/program/axis_stride.h"
#include "card/program/core_split.h"

namespace spyre {

// An operand: where its points are, and how their elements are read and written.
class OperandRows {
 public:
  OperandRows(const Step& step, size_t index, std::byte* base)
      : step_(step), operand_(step.operands[index]), access_(operand_, base), points_(points_per_core(step)) {
    for (size_t i = 0; i < step.extents.size() && !operand_.is_constant(); ++i)
      strides_.emplace_back(operand_.strides[i], operand_.format, operand_.stick == static_cast<int>(i));
  }
  bool moves(size_t axis) const {
    return !operand_.is_constant() && (operand_.strides[axis] != 0 || operand_.stick == static_cast<int>(axis));
  }
  // The address of a point, of which the dimensions behind those given are 0; in LX, that of its core.
  int64_t at(const Dims& point) const {
    int64_t address = 0, core = 0;
    for (size_t i = 0; i < step_.extents.size(); ++i) {
      const int64_t p = i < point.size() ? point[i] : 0, slice = p / points_[i];
      core = core * step_.slices[i] + slice;
      address += strides_[i].at(operand_.in_lx() ? p - slice * points_[i] : p);
    }
    return operand_.in_lx() ? address + core * operand_.core_bytes : address;
  }
  int64_t moved(size_t axis, int64_t by) const { return strides_[axis].at(by); }
  // From an address on, over the rows of one dimension and the sticks of another.
  StickMatrix matrix(int64_t at, size_t rows) const {
    const int64_t element = element_bytes(operand_.format);
    return {access_.address + at, operand_.format, operand_.strides[rows] / element,
            operand_.strides[static_cast<size_t>(operand_.stick)] / element};
  }
  void decode(float* to, int64_t at, size_t axis, int64_t first, int64_t count) const {
    even_runs(first, count, count, {&strides_[axis]}, [&](int64_t point, int64_t run) {
      access_.decode(to + point - first, at + strides_[axis].at(point), run, strides_[axis].step());
    });
  }
  void decode_integers(int64_t* to, int64_t at) const { access_.decode(to, at, 1, 0); }
  void encode(const float* from, int64_t at, size_t axis, int64_t count) const {
    even_runs(0, count, count, {&strides_[axis]}, [&](int64_t point, int64_t run) {
      access_.encode(from + point, at + strides_[axis].at(point), run, strides_[axis].step());
    });
  }

 private:
  const Step& step_;
  const Operand& operand_;
  const OperandAccess access_;
  const Dims points_;
  std::vector<AxisStride> strides_;
};

struct AttentionOperands {
  const OperandRows &out, &query, &key, &value, &mask;
  size_t depth, key_axis, width;  // dimensions of the step: along queries, from key to key of a page, along values
  size_t mask_axis;               // and from key to key of the mask
};

struct QueryRow {
  int64_t out, query;                                    // addresses
  int64_t position;                                      // of the query, among the keys
  int64_t begin, end;                                    // the keys that it may attend to
  size_t mask = 0;                                       // which of the masks is its own
  float sink = -std::numeric_limits<float>::infinity();  // a score besides those of keys
  float slope = 0;                                       // of what is added to a score per key that lies further on
};

struct QueriesAndKeys {
  std::vector<QueryRow> rows;
  std::vector<int64_t> masks;                   // addresses; none: there is no mask
  bool mask_chooses = false;                    // it is true or false, and not added
  int64_t depth = 0, width = 0, length = 0;     // elements of queries and values; keys
  int64_t page = 0;                             // keys that follow each other in memory
  std::vector<int64_t> key_pages, value_pages;  // addresses
  float scale = 1, soft_cap = 0, factor = 1;    // of scores; 0: none; of results
};

// Which routines to use: the best of this machine, or those of an instruction set, for tests.
void attend(const AttentionOperands& operands, const QueriesAndKeys& given, const char* simd = nullptr);

constexpr int64_t kMostAttentionRows = 256;  // of a task: they share decoded keys and values

}  // namespace spyre
