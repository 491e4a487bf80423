// The tasks that the host splits a matmul step into. Cores that read the same part of B differ only in their rows, so
// the rows of all of them are in one task, which reads and decodes B once; and there are as many tasks as keep the
// host's threads busy. matmul() says why no split changes a bit.
#pragma once

#include <string>
#include <vector>

#include "card/kernels/matmul.h"
#include "card/program/program.h"

namespace spyre {

class MatmulTasks {
 public:
  // Of a valid matmul step whose LX is settled.
  MatmulTasks(const Step& step, int threads);

  // No task writes what another one touches: they may run in any order and in parallel.
  int64_t tasks() const { return (items() + bundle_ - 1) / bundle_; }
  // `bases[i]` is where the argument of operand i begins. Throws ValueRange where a checked integer does not fit.
  void run(int64_t task, const std::vector<std::byte*>& bases) const;

  // Rows of C: from byte `at` on, so many bytes apart, `columns` of each, whose sticks are `stick_stride` bytes apart.
  struct Written {
    int64_t at, stride, count, columns, stick_stride;
  };
  std::vector<Written> written_by(int64_t task) const;

 private:
  // What a set of cores does together: all points of the batch dimensions along which B moves, and in each the same
  // rows of A and C, split into blocks, and columns from where the group begins.
  struct Group {
    std::vector<std::vector<RowRun>> blocks;
    int64_t at[3] = {};  // of C, A and B, in elements from the bases; rows are counted from here
    std::vector<Loop> batches;
    int64_t points = 1, columns = 0;
  };
  // One product of the host.
  struct Item {
    const std::vector<RowRun>& rows;
    int64_t at[3];
    int64_t columns;
  };

  void collect(const Step& step);
  void cut(int threads);
  int64_t items() const { return first_items_.back(); }
  Item item(int64_t index) const;
  void multiply(const Item& item, const std::vector<std::byte*>& bases) const;
  void multiply_integers(const Item& item, const std::vector<std::byte*>& bases) const;

  DataFormat formats_[3];
  int64_t stick_strides_[3];  // of C along n, of A along k, of B along its sticks
  int64_t b_row_stride_, depth_;
  bool transposed_, checked_;
  std::string source_;
  std::vector<Group> groups_;
  std::vector<int64_t> first_items_;  // of each group, and one past the last
  int64_t block_columns_ = 0, bundle_ = 1;
};

}  // namespace spyre
