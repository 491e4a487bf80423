#include "hardware.h"

#include <fstream>

namespace spyre {

Hardware Hardware::from_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw ConfigurationError("cannot read the hardware description " + path);
  Hardware hardware;
  hardware.path_ = path;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const size_t equals = line.find('=');
    const std::string key = line.substr(0, line.find_first_of(" \t="));
    try {
      if (equals == std::string::npos || key.empty()) throw std::invalid_argument(line);
      hardware.values_[key] = std::stod(line.substr(equals + 1));
    } catch (const std::exception&) {
      throw ConfigurationError(path + ":" + std::to_string(number) + ": expected `name = number`, found: " + line);
    }
  }
  return hardware;
}

double Hardware::operator[](const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw ConfigurationError("the hardware description " + path_ + " lacks " + name);
  return found->second;
}

}  // namespace spyre
