#include "card/fusion/epilogue.h"

#include <algorithm>

#include "card/fusion/step_dependence.h"
#include "card/kernels/matmul_tasks.h"

namespace spyre {

namespace {

constexpr size_t kSticksLoop = kInnerRows + 1;

bool can_follow(const FusionGroup& next) {
  if (next.items.size() != 1 || !next.items[0].loop) return false;
  const FusedLoop& fused = *next.items[0].loop;
  return fused.folds.empty() && fused.loops == kSticksLoop + 1 && fused.sticks == kSticksLoop;
}

// What the steps of the group read of the matmul's result, all of them at the same addresses; null if they do not.
const Operand* read_of(const Program& program, const GroupStep& matmul, const FusionGroup& next) {
  const Operand* read = nullptr;
  for (size_t s = next.begin; s < next.end; ++s) {
    const GroupStep member = group_step_of(s, program.steps[s], {});
    for (size_t i = 0; i < member.step.operands.size(); ++i) {
      const Operand& operand = program.steps[s].operands[i];
      if (i == 0 && (overlap(matmul, 1, member, 0) || overlap(matmul, 2, member, 0))) return nullptr;
      if (!overlap(matmul, 0, member, i)) continue;
      const bool same = !read || (read->offset == operand.offset && read->strides == operand.strides &&
                                  read->core_strides == operand.core_strides);
      if (!same || operand.format != matmul.step.operands[0].format || operand.across_cores()) return nullptr;
      if (!read && i == 0) return nullptr;  // it overwrites the result before any step has read it
      read = &operand;
    }
  }
  return read;
}

const OperandView* view_of(const FusedLoop& fused, const Operand& operand) {
  for (const OperandView& view : fused.views)
    if (view.argument == operand.argument && view.offset == operand.offset && view.source == Source::codes)
      return &view;
  return nullptr;
}

// Adds the blocks of the fused loop that are rows of the result, core by core; false where they are no rows of the
// view.
bool add_blocks(std::vector<RowBlock>& blocks, const FusedLoop& fused, const OperandView& view,
                const MatmulTasks::Written& written) {
  int64_t rest = written.at - view.offset, index[kSticksLoop + 1] = {};
  size_t loops[] = {kOuterRows, kInnerRows, kSticksLoop};
  std::sort(std::begin(loops), std::end(loops), [&](size_t a, size_t b) { return view.stride[a] > view.stride[b]; });
  for (const size_t loop : loops) {
    if (fused.count[loop] == 1) continue;
    if (rest < 0 || view.stride[loop] <= 0) return false;
    index[loop] = rest / view.stride[loop];
    rest %= view.stride[loop];
    if (index[loop] >= fused.count[loop]) return false;
  }
  const int64_t rows = fused.count[kInnerRows], sticks = (written.columns + kRow - 1) / kRow;
  if (rest || (written.count > 1 && written.stride != view.stride[kInnerRows])) return false;
  if (sticks > 1 && written.stick_stride != view.stride[kSticksLoop]) return false;
  const Range along{index[kSticksLoop], index[kSticksLoop] + sticks};
  if (along.end > fused.count[kSticksLoop]) return false;
  const bool goes_on = view.stride[kOuterRows] == rows * view.stride[kInnerRows];
  for (int64_t left = written.count; left > 0;) {
    const int64_t some = std::min(left, rows - index[kInnerRows]), core = index[kOuterRows];
    blocks.push_back({{core, core + 1}, {index[kInnerRows], index[kInnerRows] + some}, kSticksLoop, along});
    left -= some;
    index[kInnerRows] = 0;
    if (left && (!goes_on || ++index[kOuterRows] >= fused.count[kOuterRows])) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<RowBlock>> blocks_after_tasks(const Program& program, size_t matmul, const FusionGroup& next) {
  const Step& step = program.steps[matmul];
  if (step.op != OpCode::matmul || !step.matmul_tasks || step.operands[0].format != DataFormat::SEN169_FP16) return {};
  if (!can_follow(next)) return {};
  const FusedLoop& fused = *next.items[0].loop;
  const Operand* read = read_of(program, group_step_of(matmul, step, {}), next);
  const OperandView* view = read ? view_of(fused, *read) : nullptr;
  if (!view) return {};
  std::vector<std::vector<RowBlock>> blocks(static_cast<size_t>(step.matmul_tasks->tasks()));
  int64_t points = 0;
  for (size_t task = 0; task < blocks.size(); ++task) {
    for (const MatmulTasks::Written& written : step.matmul_tasks->written_by(static_cast<int64_t>(task)))
      if (!add_blocks(blocks[task], fused, *view, written)) return {};
    for (const RowBlock& block : blocks[task]) points += block.inner.count() * block.along.count();
  }
  const bool all = points == next.rows * fused.count[kSticksLoop];
  return all ? blocks : std::vector<std::vector<RowBlock>>{};
}

}  // namespace spyre
