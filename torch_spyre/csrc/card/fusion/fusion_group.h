// Steps of a program that the host runs together. A fusion group is a run of steps over the same rows: what one step
// writes in a row the others use in that row only, so a block of rows goes through all steps before the next block
// begins, on any thread. Within a group, steps over the same points make a fused loop: tile by tile, values stay in
// fp32 and mostly in registers from one step to the next, are rounded wherever the program rounds, and are written only
// if something reads them later. The bits are those of running step after step.
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

constexpr int kSlots = 12;  // tiles of floats between operations of a fused loop

// How an operand is read or written, in rows of 64 lanes.
struct OperandView {
  int argument = kConstant;
  int64_t offset = 0;
  DataFormat format = DataFormat::SEN169_FP16;
  Source source = Source::splat;  // splat: one element for all lanes
  int64_t stride[kLoops]{};       // bytes
  int64_t half = 0;               // floats: from lane 0 to lane 32
  size_t step = 0, operand = 0;   // whose value a constant has
  bool local = false;             // LX that one block of rows after the other may use
};

// What a fused loop does to a tile, one after the other: a threaded op, or a tile operation on slots.
struct Instruction {
  OpKind kind{};
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
  int64_t width;        // lanes of them
  OperandView written;  // one element per row
  int sums = -1;        // of sums in fp64: their slot, the same one or that of sums of blocks
  bool is_wide() const { return sums >= 0; }
  bool in_blocks() const { return is_wide() && sums != slot; }
};

struct FusedLoop {
  size_t loops = 2;
  int64_t count[kLoops] = {1, 1};
  size_t sticks = 0;     // which loop
  int64_t lanes = kRow;  // of the last stick
  OperandView order;     // whose order in memory is followed
  std::vector<OperandView> views;
  std::vector<OperandView> views_in_floats;  // the same, where local LX holds floats; none: where it does not
  std::vector<Instruction> code;
  std::vector<Fold> folds;
};

// An elementwise step with one element per row.
struct RowStep {
  size_t step;
  const TileOp* op;                // null: a copy
  std::vector<OperandView> views;  // by operand
};

struct Range {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// A block of rows, of one core or of several, or of one of a fused loop's other loops.
struct RowBlock {
  Range outer, inner;
  size_t loop = kOuterRows;
  Range along = outer;
};

struct FusionGroup {
  size_t begin = 0, end = 0;  // steps
  int64_t rows = 1, rows_of_core = 1;
  struct Item {
    std::unique_ptr<FusedLoop> loop;  // or
    std::unique_ptr<const RowStep> row;
  };
  std::vector<Item> items;  // none: its steps run one after the other
  // Of a group that is the epilogue of the matmul before it: the blocks that each task of the matmul makes ready.
  std::vector<std::vector<RowBlock>> after_tasks;
};

struct FusionPlan {
  std::vector<FusionGroup> groups;
  std::set<int> used, written;  // arguments of groups with items
};

std::shared_ptr<const FusionPlan> plan_fusion(const Program& program);

// What is known of the operands of a group's steps.
struct GroupFacts {
  int64_t cores = 1, rows_of_core = 1;
  std::set<size_t> dropped;                   // places of steps whose results no step reads from memory
  std::set<std::pair<size_t, size_t>> local;  // (place, operand) in LX that no other group, and no other block, sees
};

// The fused loop over members with the same points, or null if it needs too many slots.
std::unique_ptr<FusedLoop> fused_loop_of(const std::vector<GroupStep>& members, const GroupFacts& facts);
// A view of local LX as a block of rows has it that keeps floats there, if the layout allows it.
std::optional<OperandView> in_floats(const OperandView& view, int64_t rows_of_core);
std::unique_ptr<const RowStep> row_step_of(const GroupStep& member, const GroupFacts& facts);

// `bases[i]` is where argument i begins, and `lx` where the scratchpads do. A block is of the only fused loop of a
// group.
void run_block(const Program& program, const FusionGroup& group, const RowBlock& block,
               const std::vector<std::byte*>& bases, std::byte* lx);
void run_group(Engine& engine, const Program& program, const FusionGroup& group, const std::vector<std::byte*>& bases,
               std::byte* lx);

}  // namespace spyre
