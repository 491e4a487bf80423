// iota, and which routine an indexed step takes.
#include "card/kernels/index_ops.h"

#include "card/kernels/core_part.h"

namespace spyre {

namespace indexed {
namespace {

void iota(CorePart& part) {
  const std::vector<double>& constants = part.step.constants;
  const OperandWalk& written = part.operands[0];
  const Axes axes = part.axes(0, part.none);
  const size_t along = part.longest(axes, {0});
  const AxisStride& stride = written.strides[along];
  thread_local Tile tile;
  bool fits = true;
  // In doubles, term after term, whichever dimension the run is along.
  const auto value = [&](int64_t at) {
    double sum = 0;
    for (size_t axis : axes) sum += static_cast<double>(axis == along ? at : part.point[axis]) * constants[1 + axis];
    return constants[0] + sum;
  };
  part.walk(without(axes, along), [&] {
    const int64_t base = written.at(part.point, without(axes, along));
    even_runs(part.begin[along], part.count[along], kTile, {&stride}, [&](int64_t from, int64_t run) {
      for (int64_t i = 0; i < run; ++i)
        if (written.access.domain == Domain::real)
          tile.reals()[i] = static_cast<float>(value(from + i));
        else
          tile.integers()[i] = static_cast<int64_t>(value(from + i));
      fits &= written.access.encode(tile.bytes, base + stride.at(from), run, stride.step());
    });
  });
  part.check_fits(fits);
}

}  // namespace
}  // namespace indexed

void run_indexed(const Step& step, int core, const std::vector<std::byte*>& bases) {
  indexed::CorePart part(step, core, bases);
  if (part.empty()) return;
  switch (step.op) {
    case OpCode::iota:
      return indexed::iota(part);
    case OpCode::gather:
      return indexed::gather(part);
    case OpCode::scatter:
      return indexed::scatter(part);
    case OpCode::scan:
      return indexed::scan(part);
    case OpCode::argreduce:
      return indexed::argreduce(part);
    default:
      return indexed::topk(part);
  }
}

}  // namespace spyre
