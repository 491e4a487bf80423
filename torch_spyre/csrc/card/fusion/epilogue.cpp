#include "card/fusion/epilogue.h"

#include <algorithm>

#include "card/fusion/step_dependence.h"
#include "card/kernels/matmul_tasks.h"

namespace spyre {

namespace {

constexpr size_t kSticksLoop = kInnerRows + 1;

bool can_follow(const Segment& next) {
  if (next.items.size() != 1 || !next.items[0].pass) return false;
  const Pass& pass = *next.items[0].pass;
  return pass.folds.empty() && pass.loops == kSticksLoop + 1 && pass.sticks == kSticksLoop;
}

// What the steps of the pass read of the product's result, all of them at the same places; null if they do not.
const Operand* read_of(const Program& program, const Member& product, const Segment& next) {
  const Operand* read = nullptr;
  for (size_t s = next.begin; s < next.end; ++s) {
    const Member member = member_of(s, program.steps[s], {});
    for (size_t i = 0; i < member.step.operands.size(); ++i) {
      const Operand& operand = program.steps[s].operands[i];
      if (i == 0 && (overlap(product, 1, member, 0) || overlap(product, 2, member, 0))) return nullptr;
      if (!overlap(product, 0, member, i)) continue;
      const bool same = !read || (read->offset == operand.offset && read->strides == operand.strides &&
                                  read->core_strides == operand.core_strides);
      if (!same || operand.format != product.step.operands[0].format || operand.across_cores()) return nullptr;
      if (!read && i == 0) return nullptr;  // it overwrites the result before anybody has read it
      read = &operand;
    }
  }
  return read;
}

const View* view_of(const Pass& pass, const Operand& operand) {
  for (const View& view : pass.views)
    if (view.argument == operand.argument && view.offset == operand.offset && view.source == Source::codes)
      return &view;
  return nullptr;
}

// Blocks of the pass for rows of the result, a core's at a time; false where these are no rows of the view.
bool add_blocks(std::vector<RowBlock>& blocks, const Pass& pass, const View& view, const Products::Written& written) {
  int64_t rest = written.at - view.offset, index[kSticksLoop + 1] = {};
  size_t loops[] = {kOuterRows, kInnerRows, kSticksLoop};
  std::sort(std::begin(loops), std::end(loops), [&](size_t a, size_t b) { return view.stride[a] > view.stride[b]; });
  for (const size_t loop : loops) {
    if (pass.count[loop] == 1) continue;
    if (rest < 0 || view.stride[loop] <= 0) return false;
    index[loop] = rest / view.stride[loop];
    rest %= view.stride[loop];
    if (index[loop] >= pass.count[loop]) return false;
  }
  const int64_t rows = pass.count[kInnerRows], sticks = (written.columns + kRow - 1) / kRow;
  if (rest || (written.count > 1 && written.stride != view.stride[kInnerRows])) return false;
  if (sticks > 1 && written.stick_stride != view.stride[kSticksLoop]) return false;
  const Range along{index[kSticksLoop], index[kSticksLoop] + sticks};
  if (along.end > pass.count[kSticksLoop]) return false;
  const bool goes_on = view.stride[kOuterRows] == rows * view.stride[kInnerRows];
  for (int64_t left = written.count; left > 0;) {
    const int64_t some = std::min(left, rows - index[kInnerRows]), core = index[kOuterRows];
    blocks.push_back({{core, core + 1}, {index[kInnerRows], index[kInnerRows] + some}, kSticksLoop, along});
    left -= some;
    index[kInnerRows] = 0;
    if (left && (!goes_on || ++index[kOuterRows] >= pass.count[kOuterRows])) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<RowBlock>> blocks_behind_tasks(const Program& program, size_t product, const Segment& next) {
  const Step& step = program.steps[product];
  if (step.op != OpCode::matmul || !step.products || step.operands[0].format != DataFormat::SEN169_FP16) return {};
  if (!can_follow(next)) return {};
  const Pass& pass = *next.items[0].pass;
  const Operand* read = read_of(program, member_of(product, step, {}), next);
  const View* view = read ? view_of(pass, *read) : nullptr;
  if (!view) return {};
  std::vector<std::vector<RowBlock>> blocks(static_cast<size_t>(step.products->tasks()));
  int64_t points = 0;
  for (size_t task = 0; task < blocks.size(); ++task) {
    for (const Products::Written& written : step.products->written_by(static_cast<int64_t>(task)))
      if (!add_blocks(blocks[task], pass, *view, written)) return {};
    for (const RowBlock& block : blocks[task]) points += block.inner.count() * block.along.count();
  }
  const bool all = points == next.rows * pass.count[kSticksLoop];
  return all ? blocks : std::vector<std::vector<RowBlock>>{};
}

}  // namespace spyre
