// Runs fusion groups.
#include <algorithm>
#include <cstring>

#include "card/fusion/fusion_group.h"
#include "card/kernels/scratch.h"
#include "card/numeric/float_environment.h"
#include "card/numeric/formats.h"
#include "card/program/step_ops.h"

namespace spyre {

namespace {

constexpr int64_t kTileFloats = kTileRows * kRow;
constexpr int64_t kLittle = 1 << 16;  // operations on elements that are not worth a second thread

// An operand of a fused loop, in a block.
struct BoundView {
  std::byte* base;                     // of the block's first point
  bool is_column = false;              // codes that are the same for all rows are decoded once
  const std::byte* decoded = nullptr;  // of splats and columns: the address of what was decoded last
  std::byte* now = nullptr;            // of the current area,
  int64_t row_stride = 0, stick_stride = 0;
};

// The buffers of a thread. Vectors keep their memory from one fused loop to the next.
struct ThreadBuffers {
  alignas(64) float slots[kSlots][kTileFloats];
  std::vector<std::vector<float>> decoded;  // of each view that is a splat or a column
  std::vector<BoundView> bound;
  std::vector<ThreadedOp> ops;

  Scratch local_lx;
};

// `count` elements `stride` bytes apart.
void gather(float* to, const std::byte* from, int64_t count, int64_t stride, DataFormat format) {
  if (format == DataFormat::IEEE_FP32) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i, from + i * stride, sizeof(float));
    return;
  }
  uint16_t codes[kTileRows];
  for (int64_t i = 0; i < count; ++i) std::memcpy(codes + i, from + i * stride, sizeof(uint16_t));
  device_cast(HostType::F16, HostType::F32)(to, codes, static_cast<size_t>(count));
}

void scatter(std::byte* to, const float* from, int64_t count, int64_t stride, DataFormat format) {
  if (format == DataFormat::IEEE_FP32) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, from + i, sizeof(float));
    return;
  }
  uint16_t codes[kTileRows];
  device_cast(HostType::F32, HostType::F16)(codes, from, static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, codes + i, sizeof(uint16_t));
}

constexpr int64_t kAll = int64_t{1} << 40;  // more than there can be

bool is_fold(OpKind kind) { return kind >= OpKind::fold_add; }

struct BlockMemory {
  const Program& program;
  const std::vector<std::byte*>& bases;
  std::byte* lx;
  std::byte* local;  // the thread's own memory for what only a block sees; null for a block of several cores

  std::byte* at(const OperandView& view) const {
    if (view.argument == kConstant) return nullptr;
    return (is_local(view) ? local : view.argument == kLx ? lx : bases[view.argument]) + view.offset;
  }
  bool is_local(const OperandView& view) const { return view.local && local; }
  float value(const OperandView& view) const {
    return static_cast<float>(program.steps[view.step].operands[view.operand].value);
  }
};

// A fused loop over one block.
class FusedLoopRun {
 public:
  FusedLoopRun(const BlockMemory& memory, const FusedLoop& fused, const RowBlock& block, ThreadBuffers& buffers)
      : memory_(memory),
        fused_(fused),
        views_(memory.local && block.inner.count() <= kTileRows && !fused.views_in_floats.empty()
                   ? fused.views_in_floats
                   : fused.views),
        buffers_(buffers) {
    for (size_t i = 0; i < fused.loops; ++i) range_[i] = {0, fused.count[i]};
    range_[kOuterRows] = block.outer;
    range_[kInnerRows] = block.inner;
    range_[block.loop] = block.along;
    order_loops();
    bind();
  }

  void run() { walk(0); }

 private:
  // The rows of a tile are of the loop with the smallest stride among those that fill a tile; the others go from large
  // strides to small, the last of them within a run of threaded ops. A loop that is folded is followed to its end.
  void order_loops() {
    const bool folds = !fused_.folds.empty();
    int64_t most = 1;
    for (size_t i = 0; i < fused_.loops; ++i)
      if (!(folds && i == fused_.sticks)) most = std::max(most, range_[i].count());
    const int64_t enough = std::min(most, kTileRows);
    rows_ = kLoops;
    for (size_t i = 0; i < fused_.loops; ++i) {
      if ((folds && i == fused_.sticks) || range_[i].count() < enough) continue;
      if (rows_ == kLoops || fused_.order.stride[i] < fused_.order.stride[rows_]) rows_ = i;
    }
    for (size_t i = 0; i < fused_.loops; ++i)
      if (i != rows_ && range_[i].count() > 1 && !(folds && i == fused_.sticks)) loops_[depth_++] = i;
    std::stable_sort(loops_, loops_ + depth_,
                     [&](size_t a, size_t b) { return fused_.order.stride[a] > fused_.order.stride[b]; });
    if (folds)
      along_ = fused_.sticks;
    else if (depth_ > 0)
      along_ = loops_[--depth_];
    else
      along_ = rows_ == kOuterRows ? kInnerRows : kOuterRows;  // which runs once
  }

  void bind() {
    bound_.clear();
    ops_.clear();
    buffers_.decoded.resize(std::max(buffers_.decoded.size(), views_.size()));
    for (size_t v = 0; v < views_.size(); ++v) {
      const OperandView& view = views_[v];
      const bool is_column =
          view.source == Source::codes && view.stride[rows_] == 0 && range_[rows_].count() > 1 && only_read(v);
      bound_.push_back({start(view), is_column});
      if (view.source != Source::splat || view.argument == kConstant) continue;
      most_rows_ = kTileRows;
      if (view.stride[along_] != 0) most_sticks_ = 1;
    }
    bool uses_slots = false;
    for (size_t i = 0; i < fused_.code.size(); ++i) {
      const Instruction& step = fused_.code[i];
      if (step.call) {
        most_sticks_ = 1;
        ops_.push_back({end_of_ops(), nullptr, 0, 0, false});
        continue;
      }
      const Source addend = step.kind == OpKind::fma ? source_of(fused_.code[i + 1]) : Source::splat;
      ops_.push_back({find_threaded_op(kind_of(i), source_of(step), addend), nullptr, 0, 2 * kRow, step.canonical});
      if (step.slot >= 0) {
        ops_.back().at = reinterpret_cast<std::byte*>(buffers_.slots[step.slot]);
        ops_.back().row_stride = kRow * int64_t{sizeof(float)};
        uses_slots |= !is_fold(step.kind);
      }
    }
    ops_.push_back({end_of_ops(), nullptr, 0, 0, false});
    if (uses_slots || !fused_.folds.empty()) most_rows_ = kTileRows;
    in_pairs_ = !fused_.folds.empty() && !uses_slots && most_sticks_ > 1;
    for (const Fold& fold : fused_.folds)
      if (fold.in_blocks()) block_ = kWideBlock * kWideLanes / kRow;
  }

  Source source_of(const Instruction& step) const {
    return step.view >= 0 && !bound_[step.view].is_column ? views_[step.view].source : Source::floats;
  }
  // Codes that local LX holds as floats are rounded where they are stored, and cannot be copied as codes.
  OpKind kind_of(size_t i) const {
    const Instruction& step = fused_.code[i];
    const auto became_floats = [&](int view) { return views_[view].source != fused_.views[view].source; };
    if (step.kind == OpKind::copy)
      return became_floats(step.view) || became_floats(fused_.code[i - 1].view) ? OpKind::store : OpKind::copy;
    if (step.kind == OpKind::store && step.view >= 0 && became_floats(step.view) && !step.rounded)
      return OpKind::store_rounded;
    return step.kind;
  }

  // Neither written nor copied as codes.
  bool only_read(size_t view) const {
    for (size_t i = 0; i < fused_.code.size(); ++i) {
      const OpKind next = i + 1 < fused_.code.size() ? fused_.code[i + 1].kind : OpKind::load;
      if (fused_.code[i].view != static_cast<int>(view)) continue;
      if (fused_.code[i].kind == OpKind::store || fused_.code[i].kind == OpKind::copy || next == OpKind::copy)
        return false;
    }
    return true;
  }

  std::byte* start(const OperandView& view) const {
    std::byte* at = memory_.at(view);
    if (at && !memory_.is_local(view))
      for (size_t i = 0; i < fused_.loops; ++i) at += range_[i].begin * view.stride[i];
    return at;
  }

  void walk(size_t depth) {
    if (depth == depth_) return all_rows();
    const size_t loop = loops_[depth];
    for (index_[loop] = 0; index_[loop] < range_[loop].count(); ++index_[loop]) walk(depth + 1);
    index_[loop] = 0;
  }

  // Whether the last iteration of a loop over sticks has one that is not full.
  bool ends_ragged(size_t loop) const {
    return loop == fused_.sticks && fused_.lanes < kRow && range_[loop].end == fused_.count[loop];
  }

  void all_rows() {
    end_if_stopped();
    const bool ragged = ends_ragged(rows_);
    const int64_t whole = range_[rows_].count() - ragged;
    for (int64_t row = 0; row < whole; row += most_rows_) {
      end_if_stopped();
      const int64_t rows = std::min(most_rows_, whole - row);
      for (const Fold& fold : fused_.folds) begin(fold, rows);
      all_sticks(row, rows, lanes_outside());
      end_blocks(rows);
      for (const Fold& fold : fused_.folds) finish(fold, row, rows);
    }
    if (ragged) all_sticks(whole, 1, fused_.lanes);
  }

  // Lanes of the sticks, where an outer loop goes over them.
  int64_t lanes_outside() const {
    if (fused_.lanes == kRow || rows_ == fused_.sticks || along_ == fused_.sticks) return kRow;
    return range_[fused_.sticks].begin + index_[fused_.sticks] + 1 == fused_.count[fused_.sticks] ? fused_.lanes : kRow;
  }

  void all_sticks(int64_t row, int64_t rows, int64_t lanes) {
    const bool ragged = ends_ragged(along_);
    const int64_t whole = range_[along_].count() - ragged;
    for (int64_t stick = 0; stick < whole; stick += block_) {
      some_sticks(row, rows, {stick, std::min(whole, stick + block_)}, lanes);
      if (stick + block_ <= whole) end_blocks(rows);
    }
    if (ragged) area(row, whole, {rows, 1, fused_.lanes});
  }
  void some_sticks(int64_t row, int64_t rows, Range sticks, int64_t lanes) {
    int64_t stick = sticks.begin;
    if (in_pairs_ && sticks.count() > 1) {
      stick += sticks.count() / 2 * 2;
      area(row, sticks.begin, {rows, stick - sticks.begin, lanes, true});
    }
    for (; stick < sticks.end; stick += most_sticks_)
      area(row, stick, {rows, std::min(most_sticks_, sticks.end - stick), lanes});
  }

  double* sums_of(const Fold& fold) const { return reinterpret_cast<double*>(buffers_.slots[fold.sums]); }
  void begin(const Fold& fold, int64_t rows) {
    const double start = memory_.program.steps[fold.step].constants[0];
    if (fold.is_wide()) std::fill_n(sums_of(fold), rows * kWideLanes, start);
    if (!fold.is_wide() || fold.in_blocks())
      std::fill_n(buffers_.slots[fold.slot], rows * kRow, fold.is_wide() ? 0.0f : static_cast<float>(start));
  }
  // Adds the sums of blocks, which are in fp32, to those in fp64.
  void end_blocks(int64_t rows) {
    for (const Fold& fold : fused_.folds) {
      if (!fold.in_blocks()) continue;
      for (int64_t i = 0; i < rows; ++i) {
        float* block = buffers_.slots[fold.slot] + i * kRow;
        add_wide(sums_of(fold) + i * kWideLanes, block, kWideLanes);
        std::fill_n(block, kWideLanes, 0.0f);
      }
    }
  }

  void finish(const Fold& fold, int64_t row, int64_t rows) {
    float results[kTileRows];
    fold.is_wide() ? finish_wide(fold, rows, results) : finish_plain(fold, rows, results);
    scatter(place(fold.written, start(fold.written), row, 0), results, rows, fold.written.stride[rows_],
            fold.written.format);
  }
  void finish_wide(const Fold& fold, int64_t rows, float* results) {
    const std::vector<double>& constants = memory_.program.steps[fold.step].constants;
    for (int64_t i = 0; i < rows; ++i) {
      const double sum = fold_wide(sums_of(fold) + i * kWideLanes, kWideLanes);
      results[i] = narrowed(constants.size() > 1 ? sum * constants[1] : sum);
    }
  }
  void finish_plain(const Fold& fold, int64_t rows, float* results) {
    for (int64_t i = 0; i < rows; ++i) {
      float* lanes = buffers_.slots[fold.slot] + i * kRow;
      for (int64_t half = fold.width / 2; half > 0; half /= 2) {
        const void* halves[] = {lanes, lanes + half};
        fold.op->run(lanes, halves, static_cast<size_t>(half), nullptr);
      }
      results[i] = lanes[0];
    }
    const std::vector<double>& constants = memory_.program.steps[fold.step].constants;
    if (constants.size() > 1) {
      float factors[kTileRows];
      std::fill_n(factors, rows, static_cast<float>(constants[1]));
      const void* both[] = {results, factors};
      static const TileOp* const mul = find_tile_op("mul", Domain::real);
      mul->run(results, both, static_cast<size_t>(rows), nullptr);
    }
  }

  std::byte* place(const OperandView& view, std::byte* base, int64_t row, int64_t stick) const {
    if (!base) return nullptr;
    for (size_t d = 0; d < depth_; ++d) base += index_[loops_[d]] * view.stride[loops_[d]];
    return base + row * view.stride[rows_] + stick * view.stride[along_];
  }

  void area(int64_t row, int64_t stick, const Area& area) {
    for (size_t v = 0; v < bound_.size(); ++v) locate(v, place(views_[v], bound_[v].base, row, stick), area);
    ready_ = true;
    for (size_t i = 0; i < fused_.code.size(); ++i) {
      if (fused_.code[i].view < 0) continue;
      const OperandView& view = views_[fused_.code[i].view];
      const BoundView& bound = bound_[fused_.code[i].view];
      ops_[i].at = bound.now;
      ops_[i].row_stride = bound.row_stride;
      ops_[i].stick_stride = bound.stick_stride;
      ops_[i].ahead = view.source == Source::codes && !bound.is_column ? ahead(bound, area) : 0;
      if (view.source == Source::floats) ops_[i].half = area.lanes > kRow / 2 ? view.half : 0;
    }
    size_t begin = 0;
    for (size_t i = 0; i <= fused_.code.size(); ++i) {
      const bool ends = i == fused_.code.size();
      if (!ends && !fused_.code[i].call) continue;
      if (i > begin) run_threaded_ops(&ops_[begin], area);
      if (!ends) call(fused_.code[i], area.rows);
      begin = i + 1;
    }
  }

  // Sets where threaded ops find a view, whose first row and stick are at `now`.
  void locate(size_t v, std::byte* now, const Area& area) {
    const OperandView& view = views_[v];
    BoundView& bound = bound_[v];
    bound.now = now;
    bound.row_stride = view.stride[rows_];
    bound.stick_stride = view.stride[along_];
    if (view.source != Source::splat && !bound.is_column) return;
    std::vector<float>& decoded = buffers_.decoded[v];
    const bool is_new = bound.decoded != now || !ready_;
    bound.decoded = now;
    if (view.source == Source::splat) {
      decoded.resize(std::max<size_t>(decoded.size(), kTileRows));
      if (is_new)
        now ? gather(decoded.data(), now, area.rows, bound.row_stride, view.format)
            : void(decoded[0] = memory_.value(view));
      bound.row_stride = now ? sizeof(float) : 0;
      bound.stick_stride = 0;
    } else {
      static const Convert decode = device_cast(HostType::F16, HostType::F32);
      const int64_t sticks = bound.stick_stride ? area.sticks : 1;
      decoded.resize(std::max(decoded.size(), static_cast<size_t>(sticks * kRow)));
      for (int64_t i = 0; i < sticks && is_new; ++i)
        decode(decoded.data() + i * kRow, now + i * bound.stick_stride, kRow);
      bound.row_stride = 0;
      bound.stick_stride = bound.stick_stride ? kRow * int64_t{sizeof(float)} : 0;
    }
    bound.now = reinterpret_cast<std::byte*>(decoded.data());
  }

  // The distance to prefetch: some rows further in the same stick, or the next stick, which is often so far away that
  // no hardware prefetcher foresees it.
  static int64_t ahead(const BoundView& bound, const Area& area) {
    if (area.rows > kTileRows || area.sticks == 1) return kTileRows / 2 * bound.row_stride;
    return bound.stick_stride * (area.pairs_of_sticks ? 2 : 1);
  }

  void call(const Instruction& step, int64_t rows) {
    const void* inputs[4];
    for (size_t i = 0; i < step.inputs.size(); ++i) inputs[i] = buffers_.slots[step.inputs[i]];
    step.call->run(buffers_.slots[step.slot], inputs, static_cast<size_t>(rows * kRow),
                   memory_.program.steps[step.step].constants.data());
  }

  const BlockMemory& memory_;
  const FusedLoop& fused_;
  const std::vector<OperandView>& views_;
  ThreadBuffers& buffers_;
  Range range_[kLoops]{};
  int64_t index_[kLoops]{};
  size_t loops_[kLoops]{}, depth_ = 0, rows_ = 0, along_ = 0;
  int64_t most_rows_ = kAll, most_sticks_ = kAll;  // of one area
  int64_t block_ = kAll;                           // sticks after which blocks of sums end
  bool in_pairs_ = false;
  bool ready_ = false;  // splats and columns have been decoded once
  std::vector<BoundView>& bound_ = buffers_.bound;
  std::vector<ThreadedOp>& ops_ = buffers_.ops;
};

void run_rows(const BlockMemory& memory, const RowStep& row, const RowBlock& block, ThreadBuffers& buffers) {
  const std::vector<double>& constants = memory.program.steps[row.step].constants;
  const bool by_core = block.inner.count() < block.outer.count();
  const Range along = by_core ? block.outer : block.inner, others = by_core ? block.inner : block.outer;
  const size_t loop = by_core ? kOuterRows : kInnerRows, other = by_core ? kInnerRows : kOuterRows;
  for (int64_t o = others.begin; o < others.end; ++o)
    for (int64_t i = along.begin; i < along.end; i += kTileRows) {
      end_if_stopped();
      const int64_t count = std::min(kTileRows, along.end - i);
      const auto place = [&](const OperandView& view) {
        const int64_t before =
            memory.is_local(view) ? others.begin * view.stride[other] + along.begin * view.stride[loop] : 0;
        return memory.at(view) + o * view.stride[other] + i * view.stride[loop] - before;
      };
      const void* inputs[4];
      for (size_t v = 1; v < row.views.size(); ++v) {
        const OperandView& view = row.views[v];
        float* to = buffers.slots[v];
        inputs[v - 1] = to;
        if (view.argument == kConstant)
          std::fill_n(to, count, memory.value(view));
        else
          gather(to, place(view), count, view.stride[loop], view.format);
      }
      const OperandView& written = row.views[0];
      const float* results = buffers.slots[row.op ? 0 : 1];
      if (row.op) row.op->run(buffers.slots[0], inputs, static_cast<size_t>(count), constants.data());
      scatter(place(written), results, count, written.stride[loop], written.format);
    }
}

int64_t elements_of(const FusionGroup& group) {
  int64_t most = 0;
  for (const FusionGroup::Item& item : group.items) {
    if (!item.loop) continue;
    int64_t elements = kRow;
    for (size_t i = 0; i < item.loop->loops; ++i) elements *= item.loop->count[i];
    most += elements * static_cast<int64_t>(item.loop->code.size());
  }
  return most;
}

// One tile of rows per block, so that all fused loops find the rows in the caches.
std::vector<RowBlock> tiles_of_rows(const FusionGroup& group) {
  const int64_t inner = group.rows_of_core, cores = group.rows / inner, rest = group.rows % inner;
  const bool little = elements_of(group) <= kLittle;
  const int64_t several = little ? cores : std::max<int64_t>(1, kTileRows / inner), size = little ? inner : kTileRows;
  std::vector<RowBlock> blocks;
  const auto add = [&](Range outer, int64_t rows) {
    for (int64_t i = 0; i < rows; i += size) blocks.push_back({outer, {i, std::min(rows, i + size)}});
  };
  for (int64_t core = 0; core < cores; core += several) add({core, std::min(cores, core + several)}, inner);
  if (rest) add({cores, cores + 1}, rest);
  return blocks;
}

// A single fused loop that folds nothing can be split anywhere: at the largest stride, so that a block is contiguous.
std::vector<RowBlock> contiguous_blocks(const FusedLoop& fused, int64_t count) {
  size_t loop = kOuterRows;
  for (size_t i = 1; i < fused.loops; ++i)
    if (fused.count[i] > 1 && (fused.count[loop] == 1 || fused.order.stride[i] > fused.order.stride[loop])) loop = i;
  const int64_t points = fused.count[loop];
  count = std::min(points, count);
  std::vector<RowBlock> blocks;
  blocks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    blocks.push_back({{0, fused.count[kOuterRows]},
                      {0, fused.count[kInnerRows]},
                      loop,
                      {points * i / count, points * (i + 1) / count}});
  return blocks;
}

// Blocks in an order in which threads that take the next one get distant ones: working on neighbours, the prefetcher of
// one thread would fetch what the other is about to write.
std::vector<RowBlock> far_apart(const std::vector<RowBlock>& blocks, size_t threads) {
  std::vector<RowBlock> order;
  const size_t each = (blocks.size() + threads - 1) / threads;
  for (size_t i = 0; i < each; ++i)
    for (size_t thread = 0; thread < threads; ++thread)
      if (const size_t at = thread * each + i; at < blocks.size()) order.push_back(blocks[at]);
  return order;
}

std::vector<RowBlock> blocks_of(const FusionGroup& group, int threads) {
  const bool single = group.items.size() == 1 && group.items[0].loop && group.items[0].loop->folds.empty();
  if (single && group.rows % group.rows_of_core == 0)
    return contiguous_blocks(*group.items[0].loop, elements_of(group) <= kLittle ? 1 : int64_t{threads} * 8);
  return far_apart(tiles_of_rows(group), static_cast<size_t>(threads));
}

ThreadBuffers& buffers_of_thread() {
  static thread_local ThreadBuffers buffers;
  return buffers;
}

}  // namespace

void run_block(const Program& program, const FusionGroup& group, const RowBlock& block,
               const std::vector<std::byte*>& bases, std::byte* lx) {
  const BlockMemory memory{program, bases, lx, nullptr};
  FusedLoopRun(memory, *group.items[0].loop, block, buffers_of_thread()).run();
}

void run_group(Engine& engine, const Program& program, const FusionGroup& group, const std::vector<std::byte*>& bases,
               std::byte* lx) {
  const std::vector<RowBlock> blocks = blocks_of(group, engine.threads());
  engine.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t index) {
    const FloatEnvironment environment;
    ThreadBuffers& buffers = buffers_of_thread();
    const bool one_core = blocks[index].outer.count() == 1 && blocks[index].loop == kOuterRows;
    const BlockMemory memory{program, bases, lx, one_core ? buffers.local_lx.bytes(2 * program.lx_bytes) : nullptr};
    for (const FusionGroup::Item& item : group.items) {
      if (item.loop)
        FusedLoopRun(memory, *item.loop, blocks[index], buffers).run();
      else
        run_rows(memory, *item.row, blocks[index], buffers);
    }
  });
}

}  // namespace spyre
