#include "card/program/use_of_units.h"

#include <algorithm>

#include "card/program/core_split.h"
#include "card/program/paged_step.h"

namespace spyre {

double matrix_multiplications(const Step& step) {
  if (step.op == OpCode::matmul) return static_cast<double>(product(step.extents));
  if (step.op == OpCode::paged_attention) {
    const auto extent = [&](size_t axis) { return static_cast<double>(step.extents[axis]); };
    double met = 0;
    for (const paged::Request& request : paged::requests_of(step))
      for (int64_t token = request.begin; token < request.end; ++token) {
        const auto [first, last] = paged::keys_of(step, request, token);
        met += static_cast<double>(last - first);
      }
    return extent(paged::kHead) * extent(paged::kGroup) * met * (extent(paged::kWidth) + extent(paged::kDepth));
  }
  if (step.op != OpCode::attention) return 0;
  const size_t rank = step.extents.size();
  const auto rows = static_cast<double>(step.extents[rank - 4]), width = static_cast<double>(step.extents[rank - 3]);
  const auto keys = static_cast<double>(step.extents[rank - 2]), depth = static_cast<double>(step.extents[rank - 1]);
  double batch = 1;
  for (size_t i = 0; i + 4 < rank; ++i) batch *= static_cast<double>(step.extents[i]);
  const bool causal = step.constants.size() > 1 && step.constants[1] != 0;
  const double few = std::min(rows, keys);
  const double met = causal ? few * (few + 1) / 2 + (rows - few) * keys : rows * keys;
  return batch * met * (width + depth);
}

std::vector<int64_t> live_lx_bytes(const Program& program) {
  struct Value {
    int64_t low, high;
    size_t first, last;
  };
  std::vector<Value> values;
  for (size_t at = 0; at < program.steps.size(); ++at) {
    const Step& step = program.steps[at];
    for (size_t i = step.operands.size(); i-- > 0;) {  // what is read, before what is written
      if (!step.operands[i].in_lx()) continue;
      const auto [low, high] = reach(step, i, points_in_lx(step, i));
      const bool writes = i == 0 && !updates_written(step);
      bool known = false;
      for (Value& value : values) {
        if (value.high <= low || high <= value.low) continue;
        if (!writes) value.last = at, known = true;
      }
      if (writes || !known) values.push_back({low, high, at, at});
    }
  }
  std::vector<int64_t> live(program.steps.size());
  std::sort(values.begin(), values.end(), [](const Value& a, const Value& b) { return a.low < b.low; });
  for (size_t at = 0; at < live.size(); ++at) {
    int64_t end = 0;
    for (const Value& value : values) {
      if (at < value.first || at > value.last) continue;
      live[at] += std::max<int64_t>(0, value.high - std::max(value.low, end));
      end = std::max(end, value.high);
    }
  }
  return live;
}

}  // namespace spyre
