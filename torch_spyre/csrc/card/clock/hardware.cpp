#include "card/clock/hardware.h"

#include <charconv>
#include <fstream>

namespace spyre {

namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

Hardware Hardware::from_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw ConfigurationError("cannot read the hardware description " + path);
  Hardware hardware;
  hardware.path_ = path;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string text = trimmed(line.substr(0, line.find('#')));
    if (text.empty()) continue;
    const size_t equals = std::min(text.find('='), text.size());
    const std::string key = trimmed(text.substr(0, equals)),
                      value = trimmed(text.substr(equals).substr(equals < text.size()));
    // Not strtod: the process's locale may want a decimal comma.
    double parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (key.empty() || value.empty() || error != std::errc{} || end != value.data() + value.size())
      throw ConfigurationError(path + ":" + std::to_string(number) + ": expected `name = number`, found: " + line);
    hardware.values_[key] = parsed;
  }
  return hardware;
}

double Hardware::operator[](const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw ConfigurationError("the hardware description " + path_ + " lacks " + name);
  return found->second;
}

uint64_t Hardware::digest() const {
  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) digest = (digest ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  };
  for (const auto& [name, value] : values_) {
    add(name.data(), name.size());
    add(&value, sizeof(value));
  }
  return digest;
}

}  // namespace spyre
