#include "profiler/step_facts.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "runtime/calls/origin.h"

namespace torch_spyre::profiler {

namespace {

constexpr size_t kMostName = 128;
const std::string kPrefix = "spyre_kernel_v1_";
constexpr size_t kKeyLetters = 16;
constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
// Letters that a trace viewer, a file system and JSON take as they are.
constexpr char kPlain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";

std::string list_of(const spyre::Dims& numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + "]";
}

// Other letters become "_", several of them one.
std::string plain(const std::string& name) {
  std::string text;
  for (const char letter : name) {
    const bool keeps = letter != '_' && std::strchr(kPlain, letter) && letter;
    if (keeps || (!text.empty() && text.back() != '_')) text += keeps ? letter : '_';
  }
  while (!text.empty() && text.back() == '_') text.pop_back();
  return text;
}

void describe(std::ostream& out, const spyre::Step& step) {
  out << spyre::name(step.op) << step.function << list_of(step.extents) << list_of(step.slices) << step.reduced
      << step.constant << step.checked << step.special << step.next_iteration << list_of(step.tile) << step.staging;
  for (const double constant : step.constants) out << ' ' << constant;
  for (const auto& [position, number] : step.numbers) out << position << '%' << number;
  for (const spyre::Operand& operand : step.operands)
    out << ';' << operand.argument << ',' << operand.offset << list_of(operand.strides) << spyre::name(operand.format)
        << operand.stick << ',' << operand.value << ',' << operand.number << list_of(operand.core_strides);
  for (const spyre::Indirect& indirect : step.indirect)
    out << '@' << indirect.operand << ',' << indirect.extent << ',' << indirect.stride << ',' << indirect.stick;
}

// 80 bits of a hash over the plan's steps, five to a letter.
std::string key_of(const spyre::JobPlan& plan) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  for (const spyre::JobStep& job : plan.steps) {
    text << spyre::name(job.type) << job.argument << ',' << job.offset << ',' << job.buffer;
    if (!job.program) continue;
    for (const spyre::Step& step : job.program->steps) describe(text, step);
  }
  const std::string hex = c10::sha1(text.str()).str();
  std::string key;
  uint32_t bits = 0;
  int count = 0;
  for (const char digit : hex.substr(0, kKeyLetters * 5 / 4)) {
    bits = bits << 4 | static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    for (count += 4; count >= 5; count -= 5) key += kLetters[bits >> (count - 5) & 31];
  }
  return key;
}

bool has_key(const std::string& name) {
  if (name.size() < kPrefix.size() + 1 + kKeyLetters || !name.starts_with(kPrefix)) return false;
  const std::string key = name.substr(name.size() - kKeyLetters);
  return name[name.size() - kKeyLetters - 1] == '_' && key.find_first_not_of(kLetters) == std::string::npos;
}

// The kernel's name in the form that traces of this card have. The compiler gives such names; a plan that was written
// by hand gets a key here.
std::string kernel_name(const spyre::JobPlan& plan) {
  if (has_key(plan.name) && plan.name.find_first_not_of(kPlain) == std::string::npos) return plan.name;
  return kPrefix + plain(plan.name) + "_" + key_of(plan);
}

// "name#step", with the middle of the name left out where it is too long.
std::string step_name(const std::string& kernel, size_t index) {
  const std::string step = std::string("#").append(std::to_string(index));
  const size_t room = kMostName - step.size(), end = kKeyLetters + 1;
  if (kernel.size() <= room) return kernel + step;
  return kernel.substr(0, room - end) + kernel.substr(kernel.size() - end) + step;
}

std::string op_of(const spyre::Step& step) {
  const std::string op = spyre::name(step.op);
  if (step.op == spyre::OpCode::elementwise) return step.function;
  return step.function.empty() ? op : op + " " + step.function;
}

// The OpSpec that the step comes from.
std::string handles_of(const spyre::Step& step, const std::string& key) {
  std::string text = "[";
  if (step.spec >= 0) text += quoted(key + "/" + std::to_string(step.spec));
  return text + "]";
}

std::string args_of(const spyre::Step& step, const spyre::StepTime& time, const spyre::Clock& clock, double ideal_ns,
                    int64_t lx, const std::string& key) {
  const auto us = [](double given) { return decimal(given / 1000); };
  std::string text = "\"op\": " + quoted(op_of(step)) + ", \"extents\": " + list_of(step.extents) +
                     ", \"slices\": " + list_of(step.slices) + ", \"cores\": " + std::to_string(step.cores()) +
                     ", \"start_us\": " + us(time.begin_ns) + ", \"compute_us\": " + us(time.compute_ns) +
                     ", \"memory_us\": " + us(time.memory_ns) + ", \"ring_us\": " + us(time.ring_ns) +
                     ", \"bytes_read\": " + std::to_string(time.bytes_read) +
                     ", \"bytes_written\": " + std::to_string(time.bytes_written) +
                     ", \"bytes_ring\": " + std::to_string(time.bytes_ring) + ", \"lx_bytes\": " + std::to_string(lx) +
                     ", \"bound_by\": " + quoted(clock.bound_by(time, ideal_ns > 0)) +
                     ", \"ideal_us\": " + us(ideal_ns) + ", \"provenance_key\": " + quoted(key) +
                     ", \"debug_handles\": " + handles_of(step, key);
  if (!step.aten.empty()) text += ", \"aten_op\": " + quoted(step.aten);
  return text;
}

}  // namespace

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    if (static_cast<unsigned char>(letter) < 0x20)
      result += ' ';
    else
      result += letter;
  }
  return result + '"';
}

std::string decimal(double value) {
  char text[32];  // not printf: the process's locale may have a decimal comma
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, 6).ptr};
}

std::string nanoseconds(spyre::Picoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(time / 1000),
                static_cast<long long>(time % 1000));
  return text;
}

std::string place_of(const std::string& source) {
  const size_t begin = source.find("File \""), end = source.find("\", line ");
  if (begin != 0 || end == std::string::npos) return source;
  std::string line;
  for (size_t i = end + 8; i < source.size() && std::isdigit(static_cast<unsigned char>(source[i])); ++i)
    line += source[i];
  return source.substr(6, end - 6) + ":" + line;
}

std::vector<StepFacts> facts_of(const spyre::JobPlan& plan, const spyre::Card& card) {
  const std::string kernel = kernel_name(plan), key = kernel.substr(kernel.size() - kKeyLetters);
  std::vector<StepFacts> all;
  size_t index = 0;
  for (const spyre::JobStep& job : plan.steps) {
    if (job.type == spyre::JobStep::Type::H2D || job.type == spyre::JobStep::Type::D2H) {
      const bool in = job.type == spyre::JobStep::Type::H2D;
      const auto bytes = static_cast<int64_t>(plan.buffers[job.buffer].size());
      all.push_back({in ? StepFacts::Kind::to_card : StepFacts::Kind::to_host, "", card.clock().host_transfer(bytes),
                     bytes, 0, nullptr, ""});
    }
    if (!job.program) continue;
    const std::vector<spyre::StepTime> times = spyre::step_times(*job.program, card.clock());
    const std::vector<int64_t> lx = spyre::live_lx_bytes(*job.program);
    for (size_t i = 0; i < times.size(); ++i) {
      const spyre::Step& step = job.program->steps[i];
      const double ideal_ns = spyre::matrix_multiplications(step) / card.clock().peak_multiplications_per_ns();
      all.push_back({StepFacts::Kind::kernel, step_name(kernel, index++), spyre::picoseconds(times[i]), 0, ideal_ns,
                     step.source.empty() ? nullptr : interned(place_of(step.source)),
                     args_of(step, times[i], card.clock(), ideal_ns, lx[i], key)});
    }
  }
  return all;
}

}  // namespace torch_spyre::profiler
