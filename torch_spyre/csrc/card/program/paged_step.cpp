#include "card/program/paged_step.h"

#include <algorithm>
#include <cmath>

#include "card/program/index_step.h"
#include "card/text.h"

namespace spyre::paged {

namespace {

using Refusal = std::optional<std::pair<std::string, std::string>>;

constexpr const char* kNames[] = {"O", "Q", "K", "V", "the table", "the sinks", "the slopes"};

// The dimensions that an operand has, in which it has to move.
const std::vector<size_t>& dimensions_of(size_t operand) {
  static const std::vector<size_t> all[] = {{kHead, kGroup, kToken, kWidth},
                                            {kHead, kGroup, kToken, kDepth},
                                            {kHead, kSlot, kDepth},
                                            {kHead, kSlot, kWidth},
                                            {kRequest, kPage},
                                            {kHead, kGroup},
                                            {kHead, kGroup}};
  return all[operand];
}

bool takes(size_t operand, DataFormat format) {
  if (operand == kTable) return format == DataFormat::IEEE_INT32;
  const bool real = format == DataFormat::SEN169_FP16 || format == DataFormat::IEEE_FP32;
  const bool byte = format == DataFormat::SEN143_FP8 || format == DataFormat::SEN152_FP8;
  return real || (byte && (operand == kKey || operand == kValue));
}

Refusal check_operand(const Step& step, size_t index) {
  const Operand& operand = step.operands[index];
  const std::string field = "operand " + text(index);
  if (!takes(index, operand.format))
    return {{field, std::string(kNames[index]) + " cannot be " + name(operand.format)}};
  if (operand.is_constant()) {
    if (index >= kSinks && operand.number < 0) return {};
    return {{field, std::string(kNames[index]) + " cannot be a constant"}};
  }
  const std::vector<size_t>& own = dimensions_of(index);
  for (size_t axis = 0; axis < kRank; ++axis) {
    const bool has = std::find(own.begin(), own.end(), axis) != own.end(),
               moves = indexed::moves(operand, axis) || operand.stick == static_cast<int>(axis);
    if (moves && !has)
      return {{field, std::string(kNames[index]) + " must have stride 0 along dimension " + text(axis)}};
    if (!moves && has && step.extents[axis] > 1 && index < kSinks)
      return {{field, std::string(kNames[index]) + " must have a stride along dimension " + text(axis)}};
  }
  const size_t along = index == kOut || index == kValue ? kWidth : kDepth;
  if (index < kTable && operand.stick != static_cast<int>(along))
    return {{field, std::string(kNames[index]) + " must have its sticks along dimension " + text(along)}};
  return {};
}

}  // namespace

std::vector<Request> requests_of(const Step& step) {
  std::vector<Request> found;
  const int64_t count = step.extents[kRequest];
  const auto number = [&](int64_t at) {
    return static_cast<int64_t>(step.constants[kStarts + static_cast<size_t>(at)]);
  };
  for (int64_t i = 0; i < count; ++i)
    if (number(i) < number(i + 1)) found.push_back({i, number(i), number(i + 1), number(count + 1 + i)});
  return found;
}

std::pair<int64_t, int64_t> keys_of(const Step& step, const Request& request, int64_t token) {
  const int64_t position = request.position(token);
  const auto window = static_cast<int64_t>(step.constants[kWindow]);
  const int64_t last = step.constants[kCausal] != 0 ? position + 1 : request.length;
  return {window ? std::clamp<int64_t>(position - window + 1, 0, last) : 0, last};
}

Refusal check_sizes(const Step& step) {
  if (step.extents.size() != kRank)
    return {{"extents", "needs key heads, group, tokens, width, requests, pages, slots and depth, has " +
                            text(step.extents.size())}};
  const size_t wanted = kStarts + 2 * static_cast<size_t>(step.extents[kRequest]) + 1;
  if (step.constants.size() != wanted)
    return {{"constants", "needs scale, causal, window, cap, factor, and for " + text(step.extents[kRequest]) +
                              " requests where queries begin and how many keys there are: " + text(wanted) + ", has " +
                              text(step.constants.size())}};
  return {};
}

Refusal check(const Step& step) {
  for (size_t i = 0; i < kOperands; ++i)
    if (const Refusal wrong = check_operand(step, i)) return wrong;
  if (step.indirect.size() != 2 || step.indirect[0].operand != kTable || step.indirect[1].operand != kTable ||
      step.indirect[0].stick || step.indirect[1].stick || step.indirect[0].extent != step.indirect[1].extent)
    return {{"indirect", "needs where the table leads among the pages of keys, then of values"}};
  for (const size_t axis : {kGroup, kToken, kWidth, kRequest, kPage, kDepth})
    if (step.slices[axis] > 1) return {{"slices", "dimension " + text(axis) + " cannot be divided over cores"}};
  return {};
}

Refusal check_numbers(const Step& step) {
  const auto whole = [](double value) { return std::trunc(value) == value && std::abs(value) <= 0x1p40; };
  if (step.constants[kCausal] != 0 && step.constants[kCausal] != 1)
    return {{"constants", "number 1 must be 0 or 1, not " + std::to_string(step.constants[kCausal])}};
  if (!whole(step.constants[kWindow]) || step.constants[kWindow] < 0)
    return {{"constants", "a window of " + std::to_string(step.constants[kWindow]) + " keys"}};
  const auto count = static_cast<size_t>(step.extents[kRequest]);
  for (size_t i = kStarts; i < step.constants.size(); ++i)
    if (!whole(step.constants[i]) || step.constants[i] < 0)
      return {{"constants", "number " + text(i) + " is no count: " + std::to_string(step.constants[i])}};
  const double* const starts = &step.constants[kStarts];
  const double* const lengths = starts + count + 1;
  if (starts[0] != 0 || starts[count] > static_cast<double>(step.extents[kToken]))
    return {{"constants", "queries begin with 0 and end within " + text(step.extents[kToken]) + " tokens, not " +
                              text(starts[0]) + " and " + text(starts[count])}};
  const auto most = static_cast<double>(step.extents[kPage] * step.extents[kSlot]);
  for (size_t i = 0; i < count; ++i) {
    if (starts[i + 1] < starts[i])
      return {{"constants", "the queries of request " + text(i) + " end before they begin"}};
    if (lengths[i] < starts[i + 1] - starts[i] || lengths[i] > most)
      return {{"constants", "request " + text(i) + " has " + text(starts[i + 1] - starts[i]) + " queries and " +
                                text(lengths[i]) + " keys; it needs a key for each query, and its pages hold " +
                                text(most)}};
  }
  return {};
}

}  // namespace spyre::paged
