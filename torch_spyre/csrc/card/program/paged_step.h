// The fields of a paged attention step: queries of several requests, keys and values in pages that a table names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// Positions in a step's operands, constants and extents: O over head, group, token, width; Q over head, group, token,
// depth; K over head, slot, depth and V over head, slot, width, of the page that the table, over request and page,
// names; sinks and slopes over head, group. Behind the constants come, for each request, where its queries begin, then
// where the last end, then how many keys each has.
namespace paged {
enum Operands : size_t { kOut, kQuery, kKey, kValue, kTable, kSinks, kSlopes, kOperands };
enum Constants : size_t { kScale, kCausal, kWindow, kCap, kFactor, kStarts };
enum Axes : size_t { kHead, kGroup, kToken, kWidth, kRequest, kPage, kSlot, kDepth, kRank };

// A request that has queries. Its rows are tokens.
struct Request {
  int64_t index, begin, end, length;
  int64_t rows() const { return end - begin; }
  int64_t position(int64_t token) const { return length - end + token; }  // of a query, among the keys
};
std::vector<Request> requests_of(const Step& step);

// The keys that a query attends to, [first, last).
std::pair<int64_t, int64_t> keys_of(const Step& step, const Request& request, int64_t token);

// What is wrong with the step, as {field, why}: with its sizes, its operands, its numbers once they are known.
std::optional<std::pair<std::string, std::string>> check_sizes(const Step& step);
std::optional<std::pair<std::string, std::string>> check(const Step& step);
std::optional<std::pair<std::string, std::string>> check_numbers(const Step& step);
}  // namespace paged

}  // namespace spyre
