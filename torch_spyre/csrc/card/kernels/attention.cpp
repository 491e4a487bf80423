#include "card/kernels/attention.h"

#include <algorithm>

#include "card/kernels/attention_rows.h"

namespace spyre {

using namespace attention;

namespace {

// The rows over so many points of each dimension but the last three; several only where they share the keys.
void attend_from(const Step& step, const std::vector<std::byte*>& bases, const Dims& begin, const Dims& count,
                 const char* simd) {
  const size_t rank = step.extents.size();
  const OperandRows out(step, kOut, bases[kOut]), query(step, kQuery, bases[kQuery]), key(step, kKey, bases[kKey]),
      value(step, kValue, bases[kValue]), mask(step, kMask, bases[kMask]);
  const int64_t length = step.extents[rank - kLength];
  QueriesAndKeys given;
  given.depth = step.extents[rank - kDepth];
  given.width = step.extents[rank - kWidth];
  given.length = given.page = length;
  given.key_pages = {key.at(begin)};
  given.value_pages = {value.at(begin)};
  given.scale = static_cast<float>(step.constants[kScale]);
  given.mask_chooses = step.constants[kChooses] != 0;
  const bool causal = step.constants[kCausal] != 0, masked = !step.operands[kMask].is_constant();
  Dims point = begin;
  for (int64_t row = product(count); row > 0; --row) {
    const int64_t position = point.back();
    QueryRow& made = given.rows.emplace_back(QueryRow{.out = out.at(point),
                                                      .query = query.at(point),
                                                      .position = position,
                                                      .begin = 0,
                                                      .end = causal ? std::min(length, position + 1) : length});
    if (masked) {  // which several rows may share
      const int64_t at = mask.at(point);
      const auto found = std::find(given.masks.begin(), given.masks.end(), at);
      made.mask = static_cast<size_t>(found - given.masks.begin());
      if (found == given.masks.end()) given.masks.push_back(at);
    }
    for (size_t i = point.size(); i-- > 0;) {
      if (++point[i] < begin[i] + count[i]) break;
      point[i] = begin[i];
    }
  }
  const size_t axis = rank - kLength;
  attend({out, query, key, value, mask, rank - kDepth, axis, rank - kWidth, axis}, given, simd);
}

}  // namespace

AttentionTasks::AttentionTasks(const Step& step, const std::vector<std::byte*>& bases) : step_(step), bases_(bases) {
  const Dims points = points_per_core(step);
  const size_t outer = step.extents.size() - kWidth;
  // Keys in LX are those of one core; elsewhere rows that share keys may be of any cores.
  const bool own = step.operands[kKey].in_lx() || step.operands[kValue].in_lx();
  for (int core = 0; core < (own ? step.cores() : 1); ++core) {
    Dims begin(outer, 0), count(step.extents.begin(), step.extents.begin() + static_cast<ptrdiff_t>(outer));
    for (size_t i = outer, rest = static_cast<size_t>(core); own && i-- > 0;) {
      const auto slices = static_cast<size_t>(step.slices[i]);
      begin[i] = static_cast<int64_t>(rest % slices) * points[i];
      count[i] = std::clamp<int64_t>(step.extents[i] - begin[i], 0, points[i]);
      rest /= slices;
    }
    if (product(count) > 0) split(std::move(begin), std::move(count));
  }
  // The last rows of causal attention take longest, so they begin.
  std::stable_sort(tasks_.begin(), tasks_.end(),
                   [](const QueryBlock& a, const QueryBlock& b) { return a.begin.back() > b.begin.back(); });
}

// One point of each dimension that moves the keys; of the others the innermost together, up to kMostAttentionRows.
void AttentionTasks::split(Dims begin, Dims count) {
  const auto moves = [&](size_t axis) {
    for (size_t operand : {kKey, kValue})
      if (step_.operands[operand].strides[axis] != 0) return true;
    return false;
  };
  const size_t rows = begin.size() - 1;
  Dims unit(begin.size(), 1);
  int64_t room = kMostAttentionRows;
  for (size_t i = rows; i-- > 0;)  // heads first, then rows
    if (!moves(i)) {
      unit[i] = std::min(count[i], room);
      room /= unit[i];
    }
  constexpr int64_t kMostPositions = 128;  // causal rows far apart attend to different keys
  unit[rows] = std::clamp<int64_t>(room, 1, std::min(count[rows], kMostPositions));
  QueryBlock task{begin, unit};
  for (bool more = true; more;) {
    for (size_t i = 0; i < begin.size(); ++i) task.count[i] = std::min(unit[i], begin[i] + count[i] - task.begin[i]);
    tasks_.push_back(task);
    more = false;
    for (size_t i = begin.size(); i-- > 0 && !more;) {
      task.begin[i] += unit[i];
      more = task.begin[i] < begin[i] + count[i];
      if (!more) task.begin[i] = begin[i];
    }
  }
}

void AttentionTasks::run(int64_t task) const {
  const QueryBlock& which = tasks_[static_cast<size_t>(task)];
  attend_from(step_, bases_, which.begin, which.count, nullptr);
}

// For tests: the routines of one instruction set, which the machine must have, on so many points of each dimension but
// the last three at a time; only one of those that move the keys.
namespace detail {
void attention(const char* simd, const Step& step, const std::vector<std::byte*>& bases, const Dims& points) {
  Dims begin(points.size(), 0);
  for (bool more = true; more;) {
    Dims count;
    for (size_t i = 0; i < points.size(); ++i) count.push_back(std::min(points[i], step.extents[i] - begin[i]));
    attend_from(step, bases, begin, count, simd);
    more = false;
    for (size_t i = points.size(); i-- > 0 && !more;) {
      begin[i] += points[i];
      more = begin[i] < step.extents[i];
      if (!more) begin[i] = 0;
    }
  }
}
}  // namespace detail

}  // namespace spyre
