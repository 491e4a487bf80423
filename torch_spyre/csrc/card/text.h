// Numbers in error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

namespace spyre {

inline std::string text(int number) { return std::to_string(number); }
inline std::string text(int64_t number) { return std::to_string(number); }
inline std::string text(size_t number) { return std::to_string(number); }

// As short as it can be: 3 and not 3.000000.
inline std::string text(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

}  // namespace spyre
