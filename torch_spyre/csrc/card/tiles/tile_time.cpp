#include "card/tiles/tile_time.h"

#include <cmath>
#include <map>
#include <tuple>

#include "card/clock/work.h"

namespace spyre::tiles {

namespace {

spyre::Traffic operand(bool written) {
  spyre::Traffic stream;
  stream.written = written;
  stream.in_lx = true;
  return stream;
}

Work vector_stage(const Use& use) {
  Work stage;
  stage.sticks = use.vector_sticks;
  stage.special = use.special_sticks > 0;
  stage.traffic = {operand(true)};
  const double operands = use.vector_sticks > 0 ? use.operand_sticks / use.vector_sticks : 0;
  for (int i = 0; i < int(std::lround(std::min(operands, 8.0))); ++i) stage.traffic.push_back(operand(false));
  return stage;
}

Work fold_stage(const Use& use) {
  Work stage;
  stage.sticks = use.fold_sticks;
  stage.folds_lanes = true;
  stage.traffic = {operand(true), operand(false)};
  return stage;
}

Work matrix_stage(const Use& use, double all_rows) {
  Work stage;
  stage.unit = Work::Unit::matrix;
  stage.traffic = {operand(true), operand(false), operand(false)};
  stage.multiplications = use.multiplications;
  stage.rows = use.rows;
  stage.all_rows = all_rows;
  stage.area = use.rows * use.columns;
  stage.depth = use.depth;
  return stage;
}

struct Stage {
  const Instruction* at;
  Work work;
};

void collect(const Block& block, const Core& core, std::vector<Stage>& stages) {
  for (const Instruction& each : block.instructions) {
    const Use& use = core.uses[size_t(each.id)];
    if (use.multiplications > 0) stages.push_back({&each, matrix_stage(use, use.rows)});
    if (use.vector_sticks > 0) stages.push_back({&each, vector_stage(use)});
    if (use.fold_sticks > 0) stages.push_back({&each, fold_stage(use)});
    for (const Block& inner : each.blocks) collect(inner, core, stages);
  }
}

}  // namespace

TileTime time_of(const Launch& launch, const Outcome& outcome, const Clock& clock) {
  TileTime result;
  for (const Memories* memories : {&launch.arguments, static_cast<const Memories*>(&launch.memory)})
    for (const Region& each : memories->regions()) result.regions.push_back({&each});
  const auto index_of = [&](const Region* region) {
    const auto& first = launch.arguments.regions();
    const bool given = !first.empty() && region >= first.data() && region < first.data() + first.size();
    return given ? size_t(region - first.data()) : first.size() + size_t(region - launch.memory.regions().data());
  };
  std::vector<Stage> critical;
  double longest = -1;
  for (const Core& core : outcome.cores) {
    std::vector<Stage> stages;
    collect(launch.program.body, core, stages);
    auto& spans = result.spans.emplace_back();
    double vector_ns = 0, matrix_ns = 0;
    for (const Stage& stage : stages) {
      Work alone;
      alone.stages = {stage.work};
      const double ns = clock.step(alone, Clock::Begin::in_lx).compute_ns;
      const bool matrix = stage.work.unit == Work::Unit::matrix;
      (matrix ? matrix_ns : vector_ns) += ns;
      spans.push_back({stage.at->where, ns, matrix});
    }
    if (vector_ns + matrix_ns <= longest) continue;
    longest = vector_ns + matrix_ns;
    result.critical_core = core.id;
    result.vector_ns = vector_ns;
    result.matrix_ns = matrix_ns;
    critical = std::move(stages);
  }
  Work whole;
  whole.cores = int(launch.program.cores);
  whole.all_rows = 1;
  for (const Stage& stage : critical) {
    whole.stages.push_back(stage.work);
    if (stage.work.unit == Work::Unit::matrix) whole.all_rows = std::max(whole.all_rows, stage.work.rows);
  }

  // What several cores read at the same place goes to all of them at a time.
  struct Shared {
    int64_t bytes = 0, run = 0, cores = 0, last_core = -1;
  };
  using Place = std::tuple<bool, size_t, int64_t, int64_t, int64_t>;
  std::map<Place, Shared> places;
  for (const Core& core : outcome.cores)
    for (const Traffic& each : core.traffic) {
      if (each.region) {
        auto& region = result.regions[index_of(each.region)];
        (each.written ? region.written : region.read) += each.bytes;
      } else {
        if (!each.written) {
          whole.fetched_bytes = std::max(whole.fetched_bytes, double(each.bytes));
          whole.fetched_runs = 1;
          whole.fetched_from = std::max(1.0, double(launch.program.cores) - 1);
        }
        continue;
      }
      Shared& at = places[{each.written, index_of(each.region), each.first, each.last, each.bytes}];
      at.bytes = each.bytes;
      at.run = each.run;
      if (at.last_core != core.id) ++at.cores;
      at.last_core = core.id;
    }
  for (const auto& [place, shared] : places) {
    spyre::Traffic stream;
    stream.written = std::get<0>(place);
    stream.bytes = shared.bytes;
    stream.run = shared.run;
    stream.share = int(shared.cores);
    whole.traffic.push_back(stream);
    auto& region = result.regions[std::get<1>(place)];
    (stream.written ? region.unique_written : region.unique_read) += shared.bytes;
  }
  whole.unit = whole.stages.empty() ? Work::Unit::move : Work::Unit::vector;
  result.step = clock.step(whole, Clock::Begin::fresh);
  return result;
}

}  // namespace spyre::tiles
