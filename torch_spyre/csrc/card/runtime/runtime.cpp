// The process's cards, as the environment describes them.
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>

#include "card/card.h"
#include "card/error.h"
#include "card/memory/fault_handler.h"

namespace spyre {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

[[noreturn]] void refuse(const char* name, const std::string& text, const std::string& expected) {
  throw ConfigurationError(std::string(name) + "=" + text + ": expected " + expected);
}

// Not strtod: the process's locale may want a decimal comma.
double number(const char* name, double otherwise, double low, double high) {
  const std::string text = variable(name);
  if (text.empty()) return otherwise;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= low && value <= high)) {
    std::ostringstream expected;
    expected << "a number from " << low << " to " << high;
    refuse(name, text, expected.str());
  }
  return value;
}

int whole_number(const char* name, int otherwise, int low, int high) {
  const double value = number(name, otherwise, low, high);
  if (value != std::floor(value)) refuse(name, variable(name), "a whole number");
  return static_cast<int>(value);
}

template <typename Value>
Value choice(const char* name, std::initializer_list<std::pair<const char*, Value>> choices) {
  const std::string text = variable(name);
  if (text.empty()) return choices.begin()->second;
  std::string known;
  for (const auto& [key, value] : choices) {
    if (text == key) return value;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  refuse(name, text, "one of " + known);
}

constexpr int kMostCards = 8;

// Scripts for torchrun give each process of a host the card of its local rank. Rank variables alone say nothing: many
// launchers leave them to programs that use one card.
int default_count() {
  if (variable("TORCHELASTIC_RUN_ID").empty()) return 1;
  return std::min(whole_number("LOCAL_WORLD_SIZE", 1, 1, 1 << 20), kMostCards);
}

std::vector<int> visible_cards() {
  const int count = whole_number("AIU_WORLD_SIZE", default_count(), 1, kMostCards);
  const std::string list = variable("SPYRE_DEVICES");
  std::vector<int> cards;
  if (list.empty()) {
    for (int i = 0; i < count; ++i) cards.push_back(i);
    return cards;
  }
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int index = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    if (error != std::errc{} || end != part.data() + part.size() || index < 0 || index >= kMostCards)
      refuse("SPYRE_DEVICES", list, "card indices from 0 to 7 with commas between");
    if (std::find(cards.begin(), cards.end(), index) != cards.end())
      refuse("SPYRE_DEVICES", list, "each card once; " + part + " is named twice");
    cards.push_back(index);
  }
  if (!variable("AIU_WORLD_SIZE").empty() && cards.size() > static_cast<size_t>(count)) cards.resize(count);
  return cards;
}

std::string directory_for_counters() {
  const std::string text = variable("SPYRE_SMI");
  if (text == "0") return "";
  if (text.empty() || text == "1") return Publisher::default_directory();
  if (text.front() != '/') refuse("SPYRE_SMI", text, "0, 1 or the absolute path of a directory");
  return text;
}

std::mutex start_mutex;
std::atomic<Runtime*> the_runtime{nullptr};
std::atomic<bool> in_forked_child{false};
std::string hardware_file;

}  // namespace

InterruptCheck Runtime::interrupted;

Options Options::from_environment(const std::string& file) {
  Options options;
  options.mode = choice<Mode>("SPYRE_CARD", {{"run", Mode::run}, {"timing", Mode::timing}, {"strict", Mode::strict}});
  options.flex =
      choice<FlexDevice>("FLEX_DEVICE", {{"PF", FlexDevice::PF}, {"VF", FlexDevice::VF}, {"MOCK", FlexDevice::MOCK}});
  options.visible = visible_cards();
  options.memory_gb = number("SPYRE_MEMORY_GB", 0, 1e-6, 1024);
  options.cores = whole_number("SENCORES", 0, 1, 32);
  options.threads = whole_number("SPYRE_THREADS", 0, 1, 1024);
  options.launch_blocking = choice<bool>("SPYRE_LAUNCH_BLOCKING", {{"0", false}, {"1", true}});
  options.hardware_file = file;
  options.counters_directory = directory_for_counters();
  return options;
}

Runtime::Runtime(Options options)
    : options_(std::move(options)), hardware_(Hardware::from_file(options_.hardware_file)) {
  const int threads = options_.threads ? options_.threads : static_cast<int>(std::thread::hardware_concurrency());
  const int cards = static_cast<int>(options_.visible.size());
  publisher_ = std::make_unique<Publisher>(options_.counters_directory, static_cast<int>(options_.mode), cards);
  engine_ = std::make_unique<Engine>(threads, options_.mode == Mode::timing);
  engine_->waiters_compute = options_.mode != Mode::strict;  // whose checks make all work long
  MemoryOptions pinned;
  pinned.name = "pinned host memory";
  pinned.segments = 1;
  pinned.segment_bytes = pinned.capacity = 64ull << 30;
  pinned.faulting = false;
  pinned_ = std::make_unique<Memory>(pinned);
  for (int i = 0; i < cards; ++i)
    cards_.push_back(
        std::make_unique<Card>(i, options_.visible[i], options_, hardware_, *engine_, publisher_->card(i)));
  pinned_->wait_for = [this](const Use& use) { engine_->settle(use, interrupted); };
  publisher_->show();
}

// Queued work uses the cards and their memory: it ends first.
Runtime::~Runtime() { engine_.reset(); }

Card& Runtime::card(int index) {
  if (index < 0 || index >= count())
    throw Error("invalid device index " + std::to_string(index) + ": this process sees " + std::to_string(count()) +
                (count() == 1 ? " spyre card" : " spyre cards") + " (AIU_WORLD_SIZE and SPYRE_DEVICES set which)");
  return *cards_[index];
}

void Runtime::set_hardware_file(std::string path) { hardware_file = std::move(path); }
bool Runtime::started() { return the_runtime.load(std::memory_order_acquire) != nullptr; }
bool Runtime::forked() noexcept { return in_forked_child.load(std::memory_order_relaxed); }
int Runtime::device_count() { return static_cast<int>(visible_cards().size()); }

Runtime& Runtime::get() {
  Runtime* runtime = the_runtime.load(std::memory_order_acquire);
  if (runtime && !forked()) [[likely]]
    return *runtime;
  if (forked())
    throw ConfigurationError(
        "Cannot use spyre in a forked subprocess: the card belongs to the parent process. "
        "To use spyre with multiprocessing, use the 'spawn' start method.");
  std::lock_guard lock(start_mutex);
  if (!the_runtime.load()) {
    static std::once_flag once;
    std::call_once(once, [] {
      pthread_atfork(nullptr, nullptr, [] {
        if (the_runtime.load()) in_forked_child = true;
      });
      install_fault_handler();
      std::atexit([] {
        Runtime* const left = the_runtime.load();
        if (left && !forked()) left->publisher().withdraw();
      });
    });
    the_runtime.store(new Runtime(Options::from_environment(hardware_file)), std::memory_order_release);
  }
  return *the_runtime.load();
}

void Runtime::stop() {
  if (forked()) return;
  Runtime* stopped = nullptr;
  {
    std::lock_guard lock(start_mutex);
    stopped = the_runtime.exchange(nullptr);
  }
  delete stopped;  // without the lock: callbacks that are still queued may ask for the runtime
}

}  // namespace spyre
