#include "card/program/uninitialized_reads.h"

#include <algorithm>
#include <limits>
#include <map>

#include "card/error.h"
#include "card/program/core_split.h"
#include "card/text.h"

namespace spyre {

namespace {

// Which sticks of LX have been written, step after step, and on how many cores, counted from the first.
class Occupied {
 public:
  // Cores that do not write there keep what they had.
  void put(int64_t low, int64_t high, int cores) {
    low = low / kStickBytes * kStickBytes;
    high = (high + kStickBytes - 1) / kStickBytes * kStickBytes;
    std::map<int64_t, Interval> now;
    for (auto at = first_behind(low); at != intervals_.end() && at->first < high; ++at)
      now[std::max(at->first, low)] = {std::min(at->second.end, high), std::max(at->second.cores, cores)};
    drop(low, high);
    for (const auto& [from, interval] : now) {
      if (low < from) intervals_[low] = {from, cores};
      intervals_[from] = interval;
      low = interval.end;
    }
    if (low < high) intervals_[low] = {high, cores};
  }
  void drop(int64_t low, int64_t high) {
    for (auto at = first_behind(low); at != intervals_.end() && at->first < high;) {
      const auto [from, interval] = *at;
      at = intervals_.erase(at);
      if (from < low) intervals_[from] = {low, interval.cores};
      if (interval.end > high) intervals_[high] = interval;
    }
  }
  // On how many cores all of that has been written.
  int cores_with(int64_t low, int64_t high) const {
    int cores = std::numeric_limits<int>::max();
    for (auto at = first_behind(low); at != intervals_.end() && at->first <= low && low < high; ++at) {
      cores = std::min(cores, at->second.cores);
      low = at->second.end;
    }
    return low >= high ? cores : 0;
  }

 private:
  struct Interval {
    int64_t end;
    int cores;
  };
  // The first interval that ends behind an address.
  template <typename Map>
  static auto first_behind(Map& intervals, int64_t low) {
    auto at = intervals.upper_bound(low);
    return at != intervals.begin() && std::prev(at)->second.end > low ? std::prev(at) : at;
  }
  std::map<int64_t, Interval>::iterator first_behind(int64_t low) { return first_behind(intervals_, low); }
  std::map<int64_t, Interval>::const_iterator first_behind(int64_t low) const { return first_behind(intervals_, low); }

  std::map<int64_t, Interval> intervals_;
};

// One more than the last core whose LX an operand is in.
int cores_read(const Step& step, const Operand& operand) {
  if (!operand.across_cores()) return step.cores();
  int64_t last = 0;
  for (size_t i = 0; i < step.extents.size(); ++i)
    last += std::max<int64_t>((step.extents[i] - 1) * operand.core_strides[i], 0);
  return static_cast<int>(last) + 1;
}

// Evenly spaced addresses.
struct Progression {
  int64_t stride, count;
  bool operator==(const Progression&) const = default;
};

// Elements as a box: `width` bytes at each of the addresses that the levels make up, by falling stride.
struct Box {
  int64_t offset, width;
  std::vector<Progression> levels;
  bool operator==(const Box&) const = default;
  int64_t end() const {
    int64_t end = offset + width;
    for (const Progression& level : levels) end += level.stride * (level.count - 1);
    return end;
  }
};

void add_level(Box& box, int64_t stride, int64_t count) {
  if (count == 1 || stride == 0) return;
  if (stride < 0) box.offset += stride * (count - 1);
  box.levels.push_back({std::abs(stride), count});
}

// Sorts the levels, and makes those without gaps part of the width.
Box normal(Box box) {
  std::sort(box.levels.begin(), box.levels.end(),
            [](const Progression& a, const Progression& b) { return a.stride > b.stride; });
  while (!box.levels.empty() && box.levels.back().stride == box.width) {
    box.width *= box.levels.back().count;
    box.levels.pop_back();
  }
  return box;
}

// The elements of an operand over so many points: whole sticks, and what is left of the last along them.
std::vector<Box> boxes_of(const Step& step, size_t index, const Dims& points) {
  const Operand& operand = step.operands[index];
  const int64_t element = element_bytes(operand.format), stick = elements_per_stick(operand.format);
  Box rest{operand.offset, element, {}};
  for (size_t i = 0; i < points.size(); ++i)
    if (operand.stick != static_cast<int>(i)) add_level(rest, operand.strides[i], points[i]);
  for (const Indirect& indirect : indices_of(step, index)) {
    if (!indirect.stick) {
      add_level(rest, indirect.stride, indirect.extent);
      continue;
    }
    add_level(rest, indirect.stride, (indirect.extent + stick - 1) / stick);
    rest.width = kStickBytes;
  }
  if (operand.stick < 0) return {normal(std::move(rest))};
  const int64_t along = points[operand.stick], whole = along / stick, left = along % stick;
  std::vector<Box> boxes;
  if (whole) {
    Box box = rest;
    box.width = kStickBytes;
    add_level(box, operand.strides[operand.stick], whole);
    boxes.push_back(normal(std::move(box)));
  }
  if (left) {
    Box box = std::move(rest);
    box.width = left * element;
    box.offset += whole * operand.strides[operand.stick];
    boxes.push_back(normal(std::move(box)));
  }
  return boxes;
}

// Whether a box certainly contains another one. Which of its levels the other's addresses are along is clear where each
// level is longer than all below it reach.
bool has(const Box& box, const Box& other) {
  std::vector<int64_t> last;  // index of the other's last place along each level
  int64_t rest = other.offset - box.offset;
  if (rest < 0) return false;
  for (const Progression& level : box.levels) {
    last.push_back(rest / level.stride);
    rest %= level.stride;
  }
  int64_t width = rest + other.width;
  for (const Progression& wanted : other.levels) {
    size_t i = 0;
    while (i < box.levels.size() && wanted.stride % box.levels[i].stride) ++i;
    if (i < box.levels.size())
      last[i] += wanted.stride / box.levels[i].stride * (wanted.count - 1);
    else
      width += wanted.stride * (wanted.count - 1);
  }
  for (size_t i = 0; i < last.size(); ++i)
    if (last[i] >= box.levels[i].count) return false;
  return width <= box.width;
}

// How an operand in LX is split over cores. Where all have the same number of points, only their number counts.
struct CoreSplit {
  int cores = 1;
  bool even = true;
  std::vector<Dims> dimensions{};  // that are split: extent, slices, points, stride
  bool operator==(const CoreSplit&) const = default;
};

CoreSplit split_of(const Step& step, const Operand& operand) {
  CoreSplit split{step.cores()};
  const Dims points = points_per_core(step);
  for (size_t i = 0; i < points.size(); ++i) {
    if (step.slices[i] == 1) continue;
    split.even &= points[i] * step.slices[i] == step.extents[i];
    split.dimensions.push_back({step.extents[i], step.slices[i], points[i], operand.strides[i]});
  }
  return split;
}

// What is known to have been written of one memory.
class Written {
 public:
  void put(const std::vector<Box>& boxes, const CoreSplit& split) {
    for (const Box& box : boxes) {
      if (split.even && box.levels.empty())
        dense_.put(box.offset * kStickBytes, box.end() * kStickBytes, split.cores);
      else if (const WrittenBox known{box, split};
               boxes_.size() < kMostBoxes && std::find(boxes_.begin(), boxes_.end(), known) == boxes_.end())
        boxes_.push_back(known);
    }
  }
  bool has_all(const std::vector<Box>& boxes, const CoreSplit& split) const {
    return std::all_of(boxes.begin(), boxes.end(), [&](const Box& box) {
      if (dense_.cores_with(box.offset * kStickBytes, box.end() * kStickBytes) >= split.cores) return true;
      return std::any_of(boxes_.begin(), boxes_.end(), [&](const WrittenBox& known) {
        // On cores with fewer points the box is smaller, and equally so only for the same split.
        return known.split.even ? known.split.cores >= split.cores && has(known.box, box)
                                : known == WrittenBox{box, split};
      });
    });
  }

 private:
  static constexpr size_t kMostBoxes = 1024;  // further ones count as not written
  struct WrittenBox {
    Box box;
    CoreSplit split;
    bool operator==(const WrittenBox&) const = default;
  };
  Occupied dense_;  // by bytes instead of sticks
  std::vector<WrittenBox> boxes_;
};

void add(Ranges& ranges, int64_t low, int64_t high) {
  ranges.emplace_back(low, high);
  std::sort(ranges.begin(), ranges.end());
  Ranges merged;
  for (const auto& [from, to] : ranges)
    if (!merged.empty() && from <= merged.back().second)
      merged.back().second = std::max(merged.back().second, to);
    else
      merged.emplace_back(from, to);
  constexpr size_t kMostRanges = 256;
  if (merged.size() > kMostRanges) merged = {{merged.front().first, merged.back().second}};
  ranges = std::move(merged);
}

bool is_inside(const Ranges& ranges, int64_t low, int64_t high) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const auto& range) { return range.first <= low && high <= range.second; });
}

}  // namespace

void check_scratchpad(const Program& program) {
  Occupied lx;
  for (size_t index = 0; index < program.steps.size(); ++index) {
    const Step& step = program.steps[index];
    for (size_t i = 1; i < step.operands.size(); ++i) {
      if (!step.operands[i].in_lx()) continue;
      const auto [low, high] = reach(step, i, points_in_lx(step, i));
      const int cores = lx.cores_with(low, high), wanted = cores_read(step, step.operands[i]);
      if (cores < wanted)
        throw InvalidProgram("program '" + program.name + "', step " + text(static_cast<int64_t>(index)) + " (" +
                             name(step.op) + (step.source.empty() ? "" : ", " + step.source) + "), operand " +
                             text(static_cast<int64_t>(i)) + ": reads [" + text(low) + ", " + text(high) +
                             ") of LX, where nothing was written" + (cores ? " on core " + text(wanted - 1) : ""));
    }
    if (const int64_t tiles = tile_bytes(step)) lx.drop(step.staging, step.staging + tiles);
    if (!step.operands[0].in_lx()) continue;
    const auto [low, high] = reach(step, 0, points_per_core(step));
    lx.put(low, high, step.cores());
  }
}

Ranges undefined_in_lx(const Program& program) {
  Ranges undefined;
  if (!lx_bytes_of(program)) return undefined;
  Written written;
  for (const Step& step : program.steps) {
    for (size_t i = updates_written(step) ? 0 : 1; i < step.operands.size(); ++i) {
      const Operand& operand = step.operands[i];
      if (!operand.in_lx()) continue;
      const Dims points = points_in_lx(step, i);
      CoreSplit split = split_of(step, operand);
      if (operand.across_cores()) split = {cores_read(step, operand)};  // any core may read any of it
      const auto [low, high] = reach(step, i, points);
      if (is_inside(undefined, low, high) || written.has_all(boxes_of(step, i, points), split)) continue;
      add(undefined, low, high);
    }
    if (step.operands[0].in_lx())
      written.put(boxes_of(step, 0, points_per_core(step)), split_of(step, step.operands[0]));
  }
  return undefined;
}

std::vector<Ranges> undefined_in_allocations(const JobPlan& plan) {
  const auto given = static_cast<int>(plan.argument_bytes.size());
  std::vector<Ranges> undefined(plan.allocations.size());
  std::vector<Written> written(plan.allocations.size());
  for (const JobStep& job : plan.steps) {
    if ((job.type == JobStep::Type::H2D || job.type == JobStep::Type::D2H) && job.argument >= given) {
      const size_t which = static_cast<size_t>(job.argument - given);
      const Box box{job.offset, static_cast<int64_t>(plan.buffers[job.buffer].size()), {}};
      if (job.type == JobStep::Type::H2D)
        written[which].put({box}, {});
      else if (box.width && !written[which].has_all({box}, {}))
        add(undefined[which], box.offset, box.end());
    }
    if (!job.program) continue;
    for (const Step& step : job.program->steps) {
      for (size_t i = updates_written(step) ? 0 : 1; i < step.operands.size(); ++i) {
        const int argument = step.operands[i].argument;
        if (argument < given) continue;
        const size_t which = static_cast<size_t>(argument - given);
        const auto [low, high] = reach(step, i, step.extents);
        if (is_inside(undefined[which], low, high)) continue;
        if (!written[which].has_all(boxes_of(step, i, step.extents), {})) add(undefined[which], low, high);
      }
      if (step.operands[0].argument >= given && step.op != OpCode::scatter)
        written[static_cast<size_t>(step.operands[0].argument - given)].put(boxes_of(step, 0, step.extents), {});
    }
  }
  return undefined;
}

}  // namespace spyre
