#include "card/program/step_ops.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace spyre {

Domain domain_of(DataFormat format) {
  switch (format) {
    case DataFormat::SENINT8:
    case DataFormat::SENINT16:
    case DataFormat::IEEE_INT32:
    case DataFormat::SENUINT32:
      return Domain::integer;
    default:
      return Domain::real;
  }
}

bool finds_variance(const Step& step) { return step.op == OpCode::reduce && step.function == "variance"; }

int64_t folded_elements(const Step& step) {
  return std::accumulate(step.extents.end() - step.reduced, step.extents.end(), int64_t{1}, std::multiplies<>());
}

bool sums_wide(const Step& step) { return step.op == OpCode::reduce && step.function == "wide_add"; }
bool sums_in_blocks(const Step& step) { return sums_wide(step) && folded_elements(step) <= kWideAtOnce; }

const TileOp* tile_op_of(const Step& step) {
  if (step.operands.size() < 2) return nullptr;
  const Domain domain = domain_of(step.operands.back().format);
  if (sums_wide(step) || finds_variance(step)) return domain == Domain::real ? find_tile_op("add", domain) : nullptr;
  const bool can_be_short = domain == Domain::real && step.operands[0].format == DataFormat::SEN169_FP16;
  const TileOp* op = can_be_short ? find_short_op(step.function) : nullptr;
  return op ? op : find_tile_op(step.function, domain);
}

bool is_weight_format(DataFormat format) {
  constexpr DataFormat known[] = {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32, DataFormat::SENINT8,
                                  DataFormat::SEN143_FP8, DataFormat::SEN152_FP8};
  return std::find(std::begin(known), std::end(known), format) != std::end(known);
}

}  // namespace spyre
