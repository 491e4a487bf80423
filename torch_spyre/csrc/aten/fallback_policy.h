// The policy for ops that fall back to the host: warned once per op, refused, or counted silently.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace torch_spyre {

enum class FallbackMode { warn, error, count };
FallbackMode fallback_mode();
void set_fallback_mode(FallbackMode mode);
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();  // every op warns anew

// Raises NotImplementedError; listeners to failures are told of an op once.
[[noreturn]] void refuse_fallback(const std::string& op, const std::string& reason);

// Warns of, counts and logs an op that the host has computed. Where warnings are errors, this raises and counts
// nothing.
void report_fallback(const std::string& op, const std::string& reason, FallbackMode mode);

}  // namespace torch_spyre
