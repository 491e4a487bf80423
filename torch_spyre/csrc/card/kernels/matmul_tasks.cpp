#include "card/kernels/matmul_tasks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "card/engine/engine.h"
#include "card/error.h"
#include "card/kernels/operand_access.h"
#include "card/program/core_split.h"

namespace spyre {

namespace {

constexpr size_t kC = 0, kA = 1, kB = 2;

int64_t quotient_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Appends a run, or makes the last one longer where the rows go on at the same distance.
void append(std::vector<RowRun>& runs, const RowRun& run) {
  if (runs.empty()) return runs.push_back(run);
  RowRun& last = runs.back();
  const auto goes_on = [](int64_t count, RowRun::Rows before, const RowRun& run, RowRun::Rows after) {
    const int64_t stride = count > 1 ? before.stride : after.at - before.at;
    return after.at == before.at + count * stride && (run.count == 1 || after.stride == stride);
  };
  if (!goes_on(last.count, last.a, run, run.a) || !goes_on(last.count, last.c, run, run.c)) return runs.push_back(run);
  if (last.count == 1) last.a.stride = run.a.at - last.a.at, last.c.stride = run.c.at - last.c.at;
  last.count += run.count;
}

int64_t rows_of(const std::vector<RowRun>& runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const RowRun& run) { return sum + run.count; });
}

// The same rows in blocks of `height`, the last with the rest.
std::vector<std::vector<RowRun>> blocks_of(const std::vector<RowRun>& runs, int64_t height) {
  std::vector<std::vector<RowRun>> blocks;
  int64_t space = 0;
  for (RowRun run : runs)
    while (run.count > 0) {
      if (space == 0) blocks.emplace_back(), space = height;
      RowRun part = run;
      part.count = std::min(run.count, space);
      blocks.back().push_back(part);
      space -= part.count;
      run.count -= part.count;
      run.a.at += part.count * run.a.stride;
      run.c.at += part.count * run.c.stride;
    }
  return blocks;
}

// What a task of `rows` rows and `panels` panels costs, in cycles, roughly: products or fetching B, whichever takes
// longer, decoding B, decoding A, and taking the task up.
double cost_of(int64_t rows, int64_t panels, int64_t depth) {
  constexpr double kProducts = 4, kFetch = 20, kDecodeB = 4, kDecodeA = 0.5, kTakeUp = 3000;
  const auto height = static_cast<double>(rows);
  return static_cast<double>(depth) *
             (static_cast<double>(panels) * (std::max(kProducts * height, kFetch) + kDecodeB) + kDecodeA * height) +
         kTakeUp;
}

}  // namespace

MatmulTasks::MatmulTasks(const Step& step, int threads) : checked_(step.checked), source_(step.source) {
  const size_t rank = step.extents.size();
  depth_ = step.extents[rank - 1];
  transposed_ = step.operands[kB].stick == static_cast<int>(rank) - 1;
  for (size_t i : {kC, kA, kB}) formats_[i] = step.operands[i].format;
  collect(step);
  cut(threads);
}

// Where no operand is in LX, the core split does not matter. Otherwise a core's rows and columns are in its own
// scratchpad, and B there is its alone.
void MatmulTasks::collect(const Step& step) {
  const auto in_lx = [](const Operand& operand) { return operand.in_lx(); };
  Step divided = step;
  if (std::none_of(step.operands.begin(), step.operands.end(), in_lx)) divided.slices.assign(step.slices.size(), 1);
  const size_t rank = step.extents.size(), m = rank - 3, n = rank - 2, k = rank - 1;
  const Operand& b = step.operands[kB];
  const auto shares_b = [&](size_t i) {
    return i == m || (i < m && b.strides[i] == 0 && b.stick != static_cast<int>(i));
  };

  std::map<Dims, size_t> known;
  for (int core = 0; core < divided.cores(); ++core) {
    const Nest nest = core_nest(divided, core);
    if (std::any_of(nest.loops.begin(), nest.loops.end(), [](const Loop& loop) { return loop.count == 0; })) continue;
    Dims slice(rank);
    for (size_t i = rank, rest = static_cast<size_t>(core); i-- > 0;) {
      const auto slices = static_cast<size_t>(divided.slices[i]);
      slice[i] = shares_b(i) && !b.in_lx() ? 0 : static_cast<int64_t>(rest % slices);
      rest /= slices;
    }
    const auto [place, fresh] = known.try_emplace(slice, groups_.size());
    if (fresh) {
      Group& group = groups_.emplace_back();
      std::copy_n(nest.offset, 3, group.at);
      group.columns = nest.loops[n].count;
      for (size_t i = 0; i < m; ++i)
        if (!shares_b(i)) group.batches.push_back(nest.loops[i]), group.points *= nest.loops[i].count;
      group.blocks.resize(1);
      stick_strides_[kC] = nest.loops[n].stride[kC];
      stick_strides_[kA] = nest.loops[k].stride[kA];
      stick_strides_[kB] = nest.loops[transposed_ ? k : n].stride[kB];
      b_row_stride_ = nest.loops[transposed_ ? n : k].stride[kB];
    }
    Group& group = groups_[place->second];
    RowRun run{nest.loops[m].count,
               {nest.offset[kA] - group.at[kA], nest.loops[m].stride[kA]},
               {nest.offset[kC] - group.at[kC], nest.loops[m].stride[kC]}};
    const auto walk = [&](auto&& inner, size_t i, const RowRun& from) -> void {
      if (i == m) return append(group.blocks[0], from);
      RowRun at = from;
      for (int64_t point = 0; point < (shares_b(i) ? nest.loops[i].count : 1); ++point) {
        inner(inner, i + 1, at);
        at.a.at += nest.loops[i].stride[kA];
        at.c.at += nest.loops[i].stride[kC];
      }
    };
    walk(walk, 0, run);
  }
}

// Chooses the tasks that end soonest: all of the work evenly over the threads and then, at worst, one task more for all
// but the last. Tasks with fewer columns decode A more often, those with fewer rows B.
void MatmulTasks::cut(int threads) {
  int64_t rows = 1, columns = 1, points = 0;
  for (const Group& group : groups_) {
    rows = std::max(rows, rows_of(group.blocks[0]));
    columns = std::max(columns, group.columns);
    points += group.points;
  }
  constexpr int64_t kLeastRows = 48;
  int64_t unit = kPanel;  // columns of whole sticks, whichever the format
  for (size_t operand : {kC, kB})
    if (operand == kC || !transposed_) unit = std::max(unit, elements_per_stick(formats_[operand]));
  const int64_t panels = quotient_up(columns, unit), most = 16 * threads;
  double best = std::numeric_limits<double>::max();
  int64_t height = rows, wide = panels;
  for (int64_t down = 1; down == 1 || (down <= most && rows / down >= kLeastRows); ++down)
    for (int64_t across = 1; across <= std::min(panels, most); ++across) {
      const int64_t block_rows = quotient_up(rows, down), block_panels = quotient_up(panels, across);
      const auto count =
          static_cast<double>(points * quotient_up(rows, block_rows) * quotient_up(panels, block_panels));
      const double task = cost_of(block_rows, block_panels * unit / kPanel, depth_);
      const double time = count * task / threads + task * (1 - 1.0 / threads);
      if (time < best) best = time, height = block_rows, wide = block_panels;
    }
  block_columns_ = wide * unit;
  first_items_ = {0};
  for (Group& group : groups_) {
    group.blocks = blocks_of(group.blocks[0], height);
    const int64_t per_point = static_cast<int64_t>(group.blocks.size()) * quotient_up(group.columns, block_columns_);
    first_items_.push_back(first_items_.back() + group.points * per_point);
  }
  bundle_ = std::max<int64_t>(1, items() / most);
}

MatmulTasks::Item MatmulTasks::item(int64_t index) const {
  const auto next = std::upper_bound(first_items_.begin(), first_items_.end(), index);
  const Group& group = groups_[static_cast<size_t>(next - first_items_.begin()) - 1];
  index -= *std::prev(next);
  const int64_t across = quotient_up(group.columns, block_columns_), left = index % across * block_columns_;
  index /= across;
  const auto blocks = static_cast<int64_t>(group.blocks.size());
  Item item{group.blocks[static_cast<size_t>(index % blocks)], {}, std::min(block_columns_, group.columns - left)};
  std::copy_n(group.at, 3, item.at);
  item.at[kC] += left / elements_per_stick(formats_[kC]) * stick_strides_[kC];
  item.at[kB] += transposed_ ? left * b_row_stride_ : left / elements_per_stick(formats_[kB]) * stick_strides_[kB];
  index /= blocks;
  for (auto loop = group.batches.rbegin(); loop != group.batches.rend(); ++loop) {
    for (size_t operand : {kC, kA, kB}) item.at[operand] += index % loop->count * loop->stride[operand];
    index /= loop->count;
  }
  return item;
}

void MatmulTasks::run(int64_t task, const std::vector<std::byte*>& bases) const {
  const bool integers = domain_of(formats_[kC]) == Domain::integer;
  for (int64_t index = task * bundle_; index < std::min((task + 1) * bundle_, items()); ++index)
    integers ? multiply_integers(item(index), bases) : multiply(item(index), bases);
}

std::vector<MatmulTasks::Written> MatmulTasks::written_by(int64_t task) const {
  std::vector<Written> all;
  const int64_t bytes = element_bytes(formats_[kC]);
  for (int64_t index = task * bundle_; index < std::min((task + 1) * bundle_, items()); ++index) {
    const Item one = item(index);
    for (const RowRun& run : one.rows)
      all.push_back(
          {(one.at[kC] + run.c.at) * bytes, run.c.stride * bytes, run.count, one.columns, stick_strides_[kC] * bytes});
  }
  return all;
}

void MatmulTasks::multiply(const Item& item, const std::vector<std::byte*>& bases) const {
  const auto matrix = [&](size_t operand, int64_t row_stride) {
    std::byte* base = bases[operand] + item.at[operand] * element_bytes(formats_[operand]);
    return StickMatrix{base, formats_[operand], row_stride, stick_strides_[operand]};
  };
  const bool wide = formats_[kA] == DataFormat::IEEE_FP32 && formats_[kB] == DataFormat::IEEE_FP32;
  matmul(matrix(kC, 0), matrix(kA, 0), matrix(kB, b_row_stride_),
         {.m = rows_of(item.rows), .n = item.columns, .k = depth_, .transposed_b = transposed_, .wide = wide},
         item.rows);
}

namespace {

// One product of integers: rows of A and panels of B are decoded, and 64-bit sums narrowed into C.
struct IntegerProduct {
  static constexpr int64_t kRows = 16, kDeep = 256, kWide = kIntegerPanel;
  const OperandAccess c, a, b;
  const int64_t* const stick_strides;
  const int64_t b_row_stride, columns, depth;
  const bool transposed;
  alignas(64) int64_t line[kDeep]{}, panel[kDeep * kWide]{}, sums[kRows * kWide]{};
  bool fits = true;

  // Elements [first, first + count) of a matrix's row at `start`, stick by stick: body(byte, element, count).
  template <typename Body>
  void each_stick_run(const OperandAccess& access, size_t operand, int64_t start, int64_t first, int64_t count,
                      Body body) const {
    const int64_t stick = elements_per_stick(access.format), element = element_bytes(access.format);
    for (int64_t at = first, some; at < first + count; at += some) {
      some = std::min(stick - at % stick, first + count - at);
      body((start + at / stick * stick_strides[operand] + at % stick) * element, at - first, some);
    }
  }
  void decode(const OperandAccess& access, size_t operand, int64_t* to, int64_t start, int64_t first,
              int64_t count) const {
    each_stick_run(access, operand, start, first, count, [&](int64_t at, int64_t i, int64_t some) {
      access.decode(to + i, at, some, element_bytes(access.format));
    });
  }

  void decode_panel(int64_t left, int64_t width, int64_t top, int64_t deep) {
    if (!transposed) {
      for (int64_t i = 0; i < deep; ++i) decode(b, kB, panel + i * kWide, (top + i) * b_row_stride, left, width);
      return;
    }
    for (int64_t j = 0; j < width; ++j) {
      decode(b, kB, line, (left + j) * b_row_stride, top, deep);
      for (int64_t i = 0; i < deep; ++i) panel[i * kWide + j] = line[i];
    }
  }

  void run(const RowRun& rows) {
    std::fill(std::begin(panel), std::end(panel), 0);
    for (int64_t row = 0; row < rows.count; row += kRows)
      for (int64_t left = 0; left < columns; left += kWide) {
        end_if_stopped();
        const int64_t height = std::min(kRows, rows.count - row), width = std::min(kWide, columns - left);
        std::fill_n(sums, kRows * kWide, 0);
        for (int64_t top = 0; top < depth; top += kDeep) {
          const int64_t deep = std::min(kDeep, depth - top);
          decode_panel(left, width, top, deep);
          for (int64_t i = 0; i < height; ++i) {
            decode(a, kA, line, rows.a.at + (row + i) * rows.a.stride, top, deep);
            add_products(sums + i * kWide, line, panel, deep);
          }
        }
        for (int64_t i = 0; i < height; ++i)
          each_stick_run(c, kC, rows.c.at + (row + i) * rows.c.stride, left, width,
                         [&](int64_t at, int64_t j, int64_t some) {
                           fits &= c.encode(sums + i * kWide + j, at, some, element_bytes(c.format));
                         });
      }
  }
};

}  // namespace

void MatmulTasks::multiply_integers(const Item& item, const std::vector<std::byte*>& bases) const {
  const auto access = [&](size_t operand) {
    return OperandAccess(
        {static_cast<int>(operand), item.at[operand] * element_bytes(formats_[operand]), {}, formats_[operand]},
        bases[operand]);
  };
  const std::unique_ptr<IntegerProduct> product(new IntegerProduct{access(kC), access(kA), access(kB), stick_strides_,
                                                                   b_row_stride_, item.columns, depth_, transposed_});
  for (const RowRun& rows : item.rows) product->run(rows);
  if (product->fits || !checked_) return;
  throw ValueRange("a result of matmul does not fit the " + std::to_string(8 * element_bytes(formats_[kC])) +
                   " bits that the card keeps it in" + (source_.empty() ? "" : " (" + source_ + ")"));
}

}  // namespace spyre
