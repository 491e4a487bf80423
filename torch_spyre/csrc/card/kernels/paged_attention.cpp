#include "card/kernels/paged_attention.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "card/error.h"
#include "card/kernels/attention_rows.h"
#include "card/program/attention_step.h"
#include "card/text.h"

namespace spyre {

using namespace paged;

PagedAttentionTasks::PagedAttentionTasks(const Step& step, const std::vector<std::byte*>& bases)
    : step_(step), bases_(bases), requests_(requests_of(step)) {
  const int64_t most = std::max<int64_t>(1, kMostAttentionRows / step.extents[kGroup]);
  const auto add = [&](int request, int64_t head, int64_t begin, int64_t end) {
    for (; begin < end; begin += most) tasks_.push_back({request, head, begin, std::min(end, begin + most)});
  };
  int64_t behind = 0;  // the last token of all requests
  for (size_t i = 0; i < requests_.size(); ++i) {
    for (int64_t head = 0; head < step.extents[kHead]; ++head)
      add(static_cast<int>(i), head, requests_[i].begin, requests_[i].end);
    behind = requests_[i].end;
  }
  for (int64_t head = 0; head < step.extents[kHead]; ++head) add(-1, head, behind, step.extents[kToken]);
  // The longest begin.
  const auto keys = [&](const Task& task) {
    return task.request < 0 ? 0 : keys_of(step_, requests_[static_cast<size_t>(task.request)], task.end - 1).second;
  };
  std::stable_sort(tasks_.begin(), tasks_.end(), [&](const Task& a, const Task& b) { return keys(a) > keys(b); });
}

void PagedAttentionTasks::run(int64_t number) const {
  const Task& task = tasks_[static_cast<size_t>(number)];
  const auto rows_of = [&](size_t operand) { return OperandRows(step_, operand, bases_[operand]); };
  const OperandRows out = rows_of(kOut), query = rows_of(kQuery), key = rows_of(kKey), value = rows_of(kValue),
                    table = rows_of(kTable), sinks = rows_of(kSinks), slopes = rows_of(kSlopes);
  const bool has_sinks = !step_.operands[kSinks].is_constant(), has_slopes = !step_.operands[kSlopes].is_constant();
  QueriesAndKeys given;
  given.depth = step_.extents[kDepth];
  given.width = step_.extents[kWidth];
  given.page = step_.extents[kSlot];
  given.scale = static_cast<float>(step_.constants[kScale]);
  given.soft_cap = static_cast<float>(step_.constants[kCap]);
  given.factor = static_cast<float>(step_.constants[kFactor]);
  const Request none{0, 0, 0, 0};
  const Request& request = task.request < 0 ? none : requests_[static_cast<size_t>(task.request)];
  int64_t first = request.length, last = 0;
  for (int64_t group = 0; group < step_.extents[kGroup]; ++group) {
    float sink = -std::numeric_limits<float>::infinity(), slope = 0;
    if (has_sinks) sinks.decode(&sink, sinks.at({task.head, group}), kDepth, 0, 1);
    if (has_slopes) slopes.decode(&slope, slopes.at({task.head, group}), kDepth, 0, 1);
    for (int64_t token = task.begin; token < task.end; ++token) {
      QueryRow& row = given.rows.emplace_back();
      row.out = out.at({task.head, group, token});
      row.query = query.at({task.head, group, token});
      row.sink = sink;
      row.slope = slope;
      if (task.request < 0) {
        row.position = row.begin = row.end = 0;
        continue;
      }
      row.position = request.position(token);
      std::tie(row.begin, row.end) = keys_of(step_, request, token);
      first = std::min(first, row.begin);
      last = std::max(last, row.end);
    }
  }
  // Pages behind are not looked up.
  given.length = last;
  const size_t pages = static_cast<size_t>((last + given.page - 1) / given.page);
  given.key_pages.assign(pages, 0);
  given.value_pages.assign(pages, 0);
  const int64_t keys_at = key.at({task.head}), values_at = value.at({task.head}), extent = step_.indirect[0].extent;
  // A block of keys that rows attend to is read as a whole, from its first page on.
  for (size_t page = static_cast<size_t>(first / kKeys * kKeys / given.page); page < pages && first < last; ++page) {
    const int64_t at = table.at({0, 0, 0, 0, request.index, static_cast<int64_t>(page)});
    int64_t which = 0;
    table.decode_integers(&which, at);
    if (which < 0 || which >= extent)
      throw IndexRange("page " + text(static_cast<int64_t>(page)) + " of request " + text(request.index) + " is " +
                       text(which) + ", the cache has " + text(extent) + " pages (" + name(step_.op) +
                       (step_.source.empty() ? "" : ", " + step_.source) + ")");
    given.key_pages[page] = keys_at + which * step_.indirect[0].stride;
    given.value_pages[page] = values_at + which * step_.indirect[1].stride;
  }
  attend({out, query, key, value, out, kDepth, kSlot, kWidth, kSlot}, given);
}

}  // namespace spyre
