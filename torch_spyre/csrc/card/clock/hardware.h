// The hardware description, read from a file of `name = number` lines (torch_spyre/card/spyre.toml).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "card/error.h"

namespace spyre {

class Hardware {
 public:
  static Hardware from_file(const std::string& path);
  // Throws ConfigurationError when the description lacks the constant.
  double operator[](const std::string& name) const;
  // The same for descriptions with the same constants.
  uint64_t digest() const;

 private:
  std::string path_;
  std::map<std::string, double> values_;
};

}  // namespace spyre
