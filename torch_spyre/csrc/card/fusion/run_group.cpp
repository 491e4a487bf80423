// Carries segments out.
#include <algorithm>
#include <cstring>

#include "card/fusion/fusion_group.h"
#include "card/kernels/compute.h"
#include "card/numeric/float_environment.h"
#include "card/numeric/formats.h"

namespace spyre {

namespace {

constexpr int64_t kTileFloats = kTileRows * kRow;
constexpr int64_t kLittle = 1 << 16;  // operations on elements that are not worth a second thread

// A view of a pass, in a block.
struct Bound {
  std::byte* base;                     // of the block's first point
  bool is_column = false;              // codes that are the same for all rows are decoded once
  const std::byte* decoded = nullptr;  // of splats and columns: where those were that are there
  std::byte* now = nullptr;            // of the area in work,
  int64_t row_stride = 0, stick_stride = 0;
};

// One thread's tiles. Vectors keep their memory from one pass to the next.
struct Scratch {
  alignas(64) float slots[kSlots][kTileFloats];
  std::vector<std::vector<float>> decoded;  // of each view that is a splat or a column
  std::vector<Bound> bound;
  std::vector<Link> links;

  std::byte* local_lx(int64_t bytes) {
    if (static_cast<int64_t>(local_.size()) < bytes + kStickBytes)
      local_.resize(static_cast<size_t>(bytes + kStickBytes));
    const auto address = reinterpret_cast<uintptr_t>(local_.data());
    return local_.data() + (-address % kStickBytes);
  }

 private:
  std::vector<std::byte> local_;
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

bool is_fold(LinkKind kind) { return kind >= LinkKind::fold_add; }

struct Where {
  const Program& program;
  const std::vector<std::byte*>& bases;
  std::byte* lx;
  std::byte* local;  // the thread's own memory for what only a block sees; null for a block of several cores

  std::byte* at(const View& view) const {
    if (view.argument == kConstant) return nullptr;
    return (is_local(view) ? local : view.argument == kLx ? lx : bases[view.argument]) + view.offset;
  }
  bool is_local(const View& view) const { return view.local && local; }
  float value(const View& view) const {
    return static_cast<float>(program.steps[view.step].operands[view.operand].value);
  }
};

// A pass over one block.
class PassRun {
 public:
  PassRun(const Where& where, const Pass& pass, const RowBlock& block, Scratch& scratch)
      : where_(where),
        pass_(pass),
        views_(where.local && block.inner.count() <= kTileRows && !pass.views_in_floats.empty() ? pass.views_in_floats
                                                                                                : pass.views),
        scratch_(scratch) {
    for (size_t i = 0; i < pass.loops; ++i) range_[i] = {0, pass.count[i]};
    range_[kOuterRows] = block.outer;
    range_[kInnerRows] = block.inner;
    range_[block.loop] = block.along;
    order_loops();
    bind();
  }

  void run() { walk(0); }

 private:
  // The loop of tiles' rows lies closest together in memory, as far as it fills a tile; the others go from far to near,
  // the last of them within a chain. What is folded is followed to its end.
  void order_loops() {
    const bool folds = !pass_.folds.empty();
    int64_t most = 1;
    for (size_t i = 0; i < pass_.loops; ++i)
      if (!(folds && i == pass_.sticks)) most = std::max(most, range_[i].count());
    const int64_t enough = std::min(most, kTileRows);
    rows_ = kLoops;
    for (size_t i = 0; i < pass_.loops; ++i) {
      if ((folds && i == pass_.sticks) || range_[i].count() < enough) continue;
      if (rows_ == kLoops || pass_.order.stride[i] < pass_.order.stride[rows_]) rows_ = i;
    }
    for (size_t i = 0; i < pass_.loops; ++i)
      if (i != rows_ && range_[i].count() > 1 && !(folds && i == pass_.sticks)) loops_[depth_++] = i;
    std::stable_sort(loops_, loops_ + depth_,
                     [&](size_t a, size_t b) { return pass_.order.stride[a] > pass_.order.stride[b]; });
    if (folds)
      along_ = pass_.sticks;
    else if (depth_ > 0)
      along_ = loops_[--depth_];
    else
      along_ = rows_ == kOuterRows ? kInnerRows : kOuterRows;  // a single one
  }

  void bind() {
    bound_.clear();
    links_.clear();
    scratch_.decoded.resize(std::max(scratch_.decoded.size(), views_.size()));
    for (size_t v = 0; v < views_.size(); ++v) {
      const View& view = views_[v];
      const bool is_column =
          view.source == Source::codes && view.stride[rows_] == 0 && range_[rows_].count() > 1 && only_read(v);
      bound_.push_back({start(view), is_column});
      if (view.source != Source::splat || view.argument == kConstant) continue;
      most_rows_ = kTileRows;
      if (view.stride[along_] != 0) most_sticks_ = 1;
    }
    bool uses_slots = false;
    for (size_t i = 0; i < pass_.code.size(); ++i) {
      const TileStep& step = pass_.code[i];
      if (step.call) {
        most_sticks_ = 1;
        links_.push_back({end_link(), nullptr, 0, 0, false});
        continue;
      }
      const Source addend = step.link == LinkKind::fma ? source_of(pass_.code[i + 1]) : Source::splat;
      links_.push_back({find_link(link_of(i), source_of(step), addend), nullptr, 0, 2 * kRow, step.canonical});
      if (step.slot >= 0) {
        links_.back().at = reinterpret_cast<std::byte*>(scratch_.slots[step.slot]);
        links_.back().row_stride = kRow * int64_t{sizeof(float)};
        uses_slots |= !is_fold(step.link);
      }
    }
    links_.push_back({end_link(), nullptr, 0, 0, false});
    if (uses_slots || !pass_.folds.empty()) most_rows_ = kTileRows;
    in_pairs_ = !pass_.folds.empty() && !uses_slots && most_sticks_ > 1;
    for (const Fold& fold : pass_.folds)
      if (fold.in_blocks()) block_ = kWideBlock * kWideLanes / kRow;
  }

  Source source_of(const TileStep& step) const {
    return step.view >= 0 && !bound_[step.view].is_column ? views_[step.view].source : Source::floats;
  }
  // Codes that are kept in floats are stored otherwise, and are no codes to be copied.
  LinkKind link_of(size_t i) const {
    const TileStep& step = pass_.code[i];
    const auto became_floats = [&](int view) { return views_[view].source != pass_.views[view].source; };
    if (step.link == LinkKind::copy)
      return became_floats(step.view) || became_floats(pass_.code[i - 1].view) ? LinkKind::store : LinkKind::copy;
    if (step.link == LinkKind::store && step.view >= 0 && became_floats(step.view) && !step.rounded)
      return LinkKind::store_rounded;
    return step.link;
  }

  // Not written, and not copied as it lies.
  bool only_read(size_t view) const {
    for (size_t i = 0; i < pass_.code.size(); ++i) {
      const LinkKind next = i + 1 < pass_.code.size() ? pass_.code[i + 1].link : LinkKind::load;
      if (pass_.code[i].view != static_cast<int>(view)) continue;
      if (pass_.code[i].link == LinkKind::store || pass_.code[i].link == LinkKind::copy || next == LinkKind::copy)
        return false;
    }
    return true;
  }

  std::byte* start(const View& view) const {
    std::byte* at = where_.at(view);
    if (at && !where_.is_local(view))
      for (size_t i = 0; i < pass_.loops; ++i) at += range_[i].begin * view.stride[i];
    return at;
  }

  void walk(size_t depth) {
    if (depth == depth_) return all_rows();
    const size_t loop = loops_[depth];
    for (index_[loop] = 0; index_[loop] < range_[loop].count(); ++index_[loop]) walk(depth + 1);
    index_[loop] = 0;
  }

  // Whether the last round of a loop over sticks meets one that is not full.
  bool ends_ragged(size_t loop) const {
    return loop == pass_.sticks && pass_.lanes < kRow && range_[loop].end == pass_.count[loop];
  }

  void all_rows() {
    end_if_stopped();
    const bool ragged = ends_ragged(rows_);
    const int64_t whole = range_[rows_].count() - ragged;
    for (int64_t row = 0; row < whole; row += most_rows_) {
      end_if_stopped();
      const int64_t rows = std::min(most_rows_, whole - row);
      for (const Fold& fold : pass_.folds) begin(fold, rows);
      all_sticks(row, rows, lanes_outside());
      end_blocks(rows);
      for (const Fold& fold : pass_.folds) finish(fold, row, rows);
    }
    if (ragged) all_sticks(whole, 1, pass_.lanes);
  }

  // Lanes, as far as an outer loop decides.
  int64_t lanes_outside() const {
    if (pass_.lanes == kRow || rows_ == pass_.sticks || along_ == pass_.sticks) return kRow;
    return range_[pass_.sticks].begin + index_[pass_.sticks] + 1 == pass_.count[pass_.sticks] ? pass_.lanes : kRow;
  }

  void all_sticks(int64_t row, int64_t rows, int64_t lanes) {
    const bool ragged = ends_ragged(along_);
    const int64_t whole = range_[along_].count() - ragged;
    for (int64_t stick = 0; stick < whole; stick += block_) {
      some_sticks(row, rows, {stick, std::min(whole, stick + block_)}, lanes);
      if (stick + block_ <= whole) end_blocks(rows);
    }
    if (ragged) area(row, whole, {rows, 1, pass_.lanes});
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

  double* sums_of(const Fold& fold) const { return reinterpret_cast<double*>(scratch_.slots[fold.sums]); }
  void begin(const Fold& fold, int64_t rows) {
    const double start = where_.program.steps[fold.step].constants[0];
    if (fold.is_wide()) std::fill_n(sums_of(fold), rows * kWideLanes, start);
    if (!fold.is_wide() || fold.in_blocks())
      std::fill_n(scratch_.slots[fold.slot], rows * kRow, fold.is_wide() ? 0.0f : static_cast<float>(start));
  }
  // What was added up in fp32 goes to the sums.
  void end_blocks(int64_t rows) {
    for (const Fold& fold : pass_.folds) {
      if (!fold.in_blocks()) continue;
      for (int64_t i = 0; i < rows; ++i) {
        float* block = scratch_.slots[fold.slot] + i * kRow;
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
    const std::vector<double>& constants = where_.program.steps[fold.step].constants;
    for (int64_t i = 0; i < rows; ++i) {
      const double sum = fold_wide(sums_of(fold) + i * kWideLanes, kWideLanes);
      results[i] = narrowed(constants.size() > 1 ? sum * constants[1] : sum);
    }
  }
  void finish_plain(const Fold& fold, int64_t rows, float* results) {
    for (int64_t i = 0; i < rows; ++i) {
      float* lanes = scratch_.slots[fold.slot] + i * kRow;
      for (int64_t half = fold.width / 2; half > 0; half /= 2) {
        const void* halves[] = {lanes, lanes + half};
        fold.op->run(lanes, halves, static_cast<size_t>(half), nullptr);
      }
      results[i] = lanes[0];
    }
    const std::vector<double>& constants = where_.program.steps[fold.step].constants;
    if (constants.size() > 1) {
      float factors[kTileRows];
      std::fill_n(factors, rows, static_cast<float>(constants[1]));
      const void* both[] = {results, factors};
      static const TileOp* const mul = find_tile_op("mul", Domain::real);
      mul->run(results, both, static_cast<size_t>(rows), nullptr);
    }
  }

  std::byte* place(const View& view, std::byte* base, int64_t row, int64_t stick) const {
    if (!base) return nullptr;
    for (size_t d = 0; d < depth_; ++d) base += index_[loops_[d]] * view.stride[loops_[d]];
    return base + row * view.stride[rows_] + stick * view.stride[along_];
  }

  void area(int64_t row, int64_t stick, const Area& area) {
    for (size_t v = 0; v < bound_.size(); ++v) locate(v, place(views_[v], bound_[v].base, row, stick), area);
    ready_ = true;
    for (size_t i = 0; i < pass_.code.size(); ++i) {
      if (pass_.code[i].view < 0) continue;
      const View& view = views_[pass_.code[i].view];
      const Bound& bound = bound_[pass_.code[i].view];
      links_[i].at = bound.now;
      links_[i].row_stride = bound.row_stride;
      links_[i].stick_stride = bound.stick_stride;
      links_[i].ahead = view.source == Source::codes && !bound.is_column ? ahead(bound, area) : 0;
      if (view.source == Source::floats) links_[i].half = area.lanes > kRow / 2 ? view.half : 0;
    }
    size_t begin = 0;
    for (size_t i = 0; i <= pass_.code.size(); ++i) {
      const bool ends = i == pass_.code.size();
      if (!ends && !pass_.code[i].call) continue;
      if (i > begin) run_chain(&links_[begin], area);
      if (!ends) call(pass_.code[i], area.rows);
      begin = i + 1;
    }
  }

  // Where a chain finds a view, whose first row and stick are at `now`.
  void locate(size_t v, std::byte* now, const Area& area) {
    const View& view = views_[v];
    Bound& bound = bound_[v];
    bound.now = now;
    bound.row_stride = view.stride[rows_];
    bound.stick_stride = view.stride[along_];
    if (view.source != Source::splat && !bound.is_column) return;
    std::vector<float>& decoded = scratch_.decoded[v];
    const bool is_new = bound.decoded != now || !ready_;
    bound.decoded = now;
    if (view.source == Source::splat) {
      decoded.resize(std::max<size_t>(decoded.size(), kTileRows));
      if (is_new)
        now ? gather(decoded.data(), now, area.rows, bound.row_stride, view.format)
            : void(decoded[0] = where_.value(view));
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

  // To what a chain will meet after so many rows: of the same stick, or of the next, which is often far away, where no
  // hardware expects it.
  static int64_t ahead(const Bound& bound, const Area& area) {
    if (area.rows > kTileRows || area.sticks == 1) return kTileRows / 2 * bound.row_stride;
    return bound.stick_stride * (area.pairs_of_sticks ? 2 : 1);
  }

  void call(const TileStep& step, int64_t rows) {
    const void* inputs[4];
    for (size_t i = 0; i < step.inputs.size(); ++i) inputs[i] = scratch_.slots[step.inputs[i]];
    step.call->run(scratch_.slots[step.slot], inputs, static_cast<size_t>(rows * kRow),
                   where_.program.steps[step.step].constants.data());
  }

  const Where& where_;
  const Pass& pass_;
  const std::vector<View>& views_;
  Scratch& scratch_;
  Range range_[kLoops]{};
  int64_t index_[kLoops]{};
  size_t loops_[kLoops]{}, depth_ = 0, rows_ = 0, along_ = 0;
  int64_t most_rows_ = kAll, most_sticks_ = kAll;  // in one go
  int64_t block_ = kAll;                           // sticks after which blocks of sums end
  bool in_pairs_ = false;
  bool ready_ = false;  // splats and columns have been decoded once
  std::vector<Bound>& bound_ = scratch_.bound;
  std::vector<Link>& links_ = scratch_.links;
};

void run_rows(const Where& where, const RowStep& row, const RowBlock& block, Scratch& scratch) {
  const std::vector<double>& constants = where.program.steps[row.step].constants;
  const bool by_core = block.inner.count() < block.outer.count();
  const Range along = by_core ? block.outer : block.inner, others = by_core ? block.inner : block.outer;
  const size_t loop = by_core ? kOuterRows : kInnerRows, other = by_core ? kInnerRows : kOuterRows;
  for (int64_t o = others.begin; o < others.end; ++o)
    for (int64_t i = along.begin; i < along.end; i += kTileRows) {
      end_if_stopped();
      const int64_t count = std::min(kTileRows, along.end - i);
      const auto place = [&](const View& view) {
        const int64_t before =
            where.is_local(view) ? others.begin * view.stride[other] + along.begin * view.stride[loop] : 0;
        return where.at(view) + o * view.stride[other] + i * view.stride[loop] - before;
      };
      const void* inputs[4];
      for (size_t v = 1; v < row.views.size(); ++v) {
        const View& view = row.views[v];
        float* to = scratch.slots[v];
        inputs[v - 1] = to;
        if (view.argument == kConstant)
          std::fill_n(to, count, where.value(view));
        else
          gather(to, place(view), count, view.stride[loop], view.format);
      }
      const View& written = row.views[0];
      const float* results = scratch.slots[row.op ? 0 : 1];
      if (row.op) row.op->run(scratch.slots[0], inputs, static_cast<size_t>(count), constants.data());
      scatter(place(written), results, count, written.stride[loop], written.format);
    }
}

int64_t elements_of(const Segment& segment) {
  int64_t most = 0;
  for (const Segment::Item& item : segment.items) {
    if (!item.pass) continue;
    int64_t elements = kRow;
    for (size_t i = 0; i < item.pass->loops; ++i) elements *= item.pass->count[i];
    most += elements * static_cast<int64_t>(item.pass->code.size());
  }
  return most;
}

// A tile of rows at a time, where several passes share what the caches hold.
std::vector<RowBlock> tiles_of_rows(const Segment& segment) {
  const int64_t inner = segment.rows_of_core, cores = segment.rows / inner, rest = segment.rows % inner;
  const bool little = elements_of(segment) <= kLittle;
  const int64_t several = little ? cores : std::max<int64_t>(1, kTileRows / inner), size = little ? inner : kTileRows;
  std::vector<RowBlock> blocks;
  const auto add = [&](Range outer, int64_t rows) {
    for (int64_t i = 0; i < rows; i += size) blocks.push_back({outer, {i, std::min(rows, i + size)}});
  };
  for (int64_t core = 0; core < cores; core += several) add({core, std::min(cores, core + several)}, inner);
  if (rest) add({cores, cores + 1}, rest);
  return blocks;
}

// A single pass that folds nothing can be cut anywhere: so that every block is one piece of memory, if possible.
std::vector<RowBlock> pieces_of_memory(const Pass& pass, int64_t count) {
  size_t loop = kOuterRows;
  for (size_t i = 1; i < pass.loops; ++i)
    if (pass.count[i] > 1 && (pass.count[loop] == 1 || pass.order.stride[i] > pass.order.stride[loop])) loop = i;
  const int64_t points = pass.count[loop];
  count = std::min(points, count);
  std::vector<RowBlock> blocks;
  for (int64_t i = 0; i < count; ++i)
    blocks.push_back({{0, pass.count[kOuterRows]},
                      {0, pass.count[kInnerRows]},
                      loop,
                      {points * i / count, points * (i + 1) / count}});
  return blocks;
}

// Threads that take blocks in turn get ones from different ends: of neighbours, each would fetch what the other writes.
std::vector<RowBlock> far_apart(const std::vector<RowBlock>& blocks, size_t threads) {
  std::vector<RowBlock> order;
  const size_t each = (blocks.size() + threads - 1) / threads;
  for (size_t i = 0; i < each; ++i)
    for (size_t thread = 0; thread < threads; ++thread)
      if (const size_t at = thread * each + i; at < blocks.size()) order.push_back(blocks[at]);
  return order;
}

std::vector<RowBlock> blocks_of(const Segment& segment, int threads) {
  const bool single = segment.items.size() == 1 && segment.items[0].pass && segment.items[0].pass->folds.empty();
  if (single && segment.rows % segment.rows_of_core == 0)
    return pieces_of_memory(*segment.items[0].pass, elements_of(segment) <= kLittle ? 1 : int64_t{threads} * 8);
  return far_apart(tiles_of_rows(segment), static_cast<size_t>(threads));
}

Scratch& scratch_of_thread() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

void run_block(const Program& program, const Segment& segment, const RowBlock& block,
               const std::vector<std::byte*>& bases, std::byte* lx) {
  const Where where{program, bases, lx, nullptr};
  PassRun(where, *segment.items[0].pass, block, scratch_of_thread()).run();
}

void run_segment(Engine& engine, const Program& program, const Segment& segment, const std::vector<std::byte*>& bases,
                 std::byte* lx) {
  const std::vector<RowBlock> blocks = blocks_of(segment, engine.threads());
  engine.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t index) {
    const CardArithmetic arithmetic;
    Scratch& scratch = scratch_of_thread();
    const bool one_core = blocks[index].outer.count() == 1 && blocks[index].loop == kOuterRows;
    const Where where{program, bases, lx, one_core ? scratch.local_lx(2 * program.lx_bytes) : nullptr};
    for (const Segment::Item& item : segment.items) {
      if (item.pass)
        PassRun(where, *item.pass, blocks[index], scratch).run();
      else
        run_rows(where, *item.row, blocks[index], scratch);
    }
  });
}

}  // namespace spyre
