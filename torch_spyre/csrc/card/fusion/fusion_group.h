// Steps of a program that run together. A segment is a run of steps over the same rows: what one step leaves in a row
// the others use in that row only, so that a block of rows goes through all of them before the next block begins, on
// whichever host thread. Within a segment, steps over the same points make a pass: tile by tile, values stay in fp32
// and mostly in registers from one step to the next, rounded wherever the program rounds, and are written only if
// something reads them later. Bits are those of step after step.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "card/engine/engine.h"
#include "card/fusion/step_dependence.h"
#include "card/fusion/threaded_ops.h"
#include "card/numeric/tile_ops.h"
#include "card/program/program.h"

namespace spyre {

constexpr int kSlots = 12;  // tiles of floats between operations of a pass

// How an operand is read or written, in rows of 64 lanes.
struct View {
  int argument = kConstant;
  int64_t offset = 0;
  DataFormat format = DataFormat::SEN169_FP16;
  Source source = Source::splat;  // splat: one element for all lanes
  int64_t stride[kLoops]{};       // bytes
  int64_t half = 0;               // floats: from lane 0 to lane 32
  size_t step = 0, operand = 0;   // whose value a constant has
  bool local = false;             // LX that one block of rows after the other may use
};

// What a pass does to a tile, one after the other: a link of a chain, or a tile operation on slots.
struct TileStep {
  LinkKind link{};
  int view = -1;  // memory,
  int slot = -1;  //   or floats between operations
  bool canonical = false;
  bool rounded = false;  // store: what is stored is a code's value already
  const TileOp* call = nullptr;
  size_t step = 0;            // whose constants a tile operation takes
  std::vector<int> inputs{};  // its slots
};

// Running results along the sticks of a row.
struct Fold {
  size_t step;
  const TileOp* op;
  int slot;
  int64_t width;  // lanes of them
  View written;   // one element per row
  int sums = -1;  // of sums in fp64: their slot, the same one or that of sums of blocks
  bool is_wide() const { return sums >= 0; }
  bool in_blocks() const { return is_wide() && sums != slot; }
};

struct Pass {
  size_t loops = 2;
  int64_t count[kLoops] = {1, 1};
  size_t sticks = 0;     // which loop
  int64_t lanes = kRow;  // of the last stick
  View order;            // whose order in memory is followed
  std::vector<View> views;
  std::vector<View> views_in_floats;  // the same, where local LX holds floats; none: where it does not
  std::vector<TileStep> code;
  std::vector<Fold> folds;
};

// An elementwise step with one element per row.
struct RowStep {
  size_t step;
  const TileOp* op;         // null: a copy
  std::vector<View> views;  // by operand
};

struct Range {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// A block of rows, of one core or of several, or of one of a pass's other loops.
struct RowBlock {
  Range outer, inner;
  size_t loop = kOuterRows;
  Range along = outer;
};

struct Segment {
  size_t begin = 0, end = 0;  // steps
  int64_t rows = 1, rows_of_core = 1;
  struct Item {
    std::unique_ptr<Pass> pass;  // or
    std::unique_ptr<const RowStep> row;
  };
  std::vector<Item> items;  // none: its steps run one after the other
  // Of a pass behind a product that need not wait for all of it: what each task of the product lets it do.
  std::vector<std::vector<RowBlock>> behind_tasks;
};

struct Schedule {
  std::vector<Segment> segments;
  std::set<int> used, written;  // arguments of segments with items
};

std::shared_ptr<const Schedule> schedule_of(const Program& program);

// What is known of the operands of a segment's steps.
struct Knowledge {
  int64_t cores = 1, rows_of_core = 1;
  std::set<size_t> dropped;                   // places of steps whose results nobody reads from memory
  std::set<std::pair<size_t, size_t>> local;  // (place, operand) in LX that no other segment, and no other block, sees
};

// The pass over members with the same points, or null if it needs too many slots.
std::unique_ptr<Pass> pass_of(const std::vector<Member>& members, const Knowledge& known);
// A view of local LX as a block of rows has it that keeps floats there, if the layout allows it.
std::optional<View> in_floats(const View& view, int64_t rows_of_core);
std::unique_ptr<const RowStep> row_step_of(const Member& member, const Knowledge& known);

// `bases[i]` is where argument i begins, and `lx` where the scratchpads do. A block is of the only pass of a segment.
void run_block(const Program& program, const Segment& segment, const RowBlock& block,
               const std::vector<std::byte*>& bases, std::byte* lx);
void run_segment(Engine& engine, const Program& program, const Segment& segment, const std::vector<std::byte*>& bases,
                 std::byte* lx);

}  // namespace spyre
