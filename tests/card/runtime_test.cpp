// What the cards are made from: the environment, the hardware description, and the clock that follows from it.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "card/card.h"
#include "card/clock/work.h"
#include "card/program/step_work.h"
#include "testing.h"

using namespace spyre;

namespace {

// Sets a variable of the environment for a scope.
struct Setting {
  const char* name;
  Setting(const char* name, const char* value) : name(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name); }
};

}  // namespace

TEST("runtime: the environment") {
  const auto given = [] { return Options::from_environment("file"); };
  for (const char* name : {"SPYRE_CARD", "FLEX_DEVICE", "AIU_WORLD_SIZE", "SPYRE_DEVICES", "SPYRE_MEMORY_GB",
                           "SENCORES", "SPYRE_THREADS", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"})
    unsetenv(name);
  CHECK(given().mode == Mode::run && given().visible == std::vector<int>({0}) && given().cores == 0);
  {
    Setting mode("SPYRE_CARD", "strict"), flex("FLEX_DEVICE", "VF"), world("AIU_WORLD_SIZE", "3"),
        gb("SPYRE_MEMORY_GB", "0.5"), cores("SENCORES", "16"), threads("SPYRE_THREADS", "1");
    const Options options = given();
    CHECK(options.mode == Mode::strict && options.flex == FlexDevice::VF && options.memory_gb == 0.5);
    CHECK(options.visible == std::vector<int>({0, 1, 2}) && options.cores == 16 && options.threads == 1);
    Setting devices("SPYRE_DEVICES", "5,2,7,1");
    CHECK(given().visible == std::vector<int>({5, 2, 7}) && Runtime::device_count() == 3);
  }
  {
    Setting ranks("LOCAL_WORLD_SIZE", "2");
    CHECK(given().visible == std::vector<int>({0}));
    Setting torchrun("TORCHELASTIC_RUN_ID", "none");
    CHECK(given().visible == std::vector<int>({0, 1}));
    Setting more("LOCAL_WORLD_SIZE", "16");
    CHECK(Runtime::device_count() == 8);
    Setting world("AIU_WORLD_SIZE", "1");
    CHECK(given().visible == std::vector<int>({0}));
  }
  const std::pair<const char*, const char*> wrong[] = {
      {"SPYRE_CARD", "fast"},    {"FLEX_DEVICE", "pf"},    {"AIU_WORLD_SIZE", "9"},    {"AIU_WORLD_SIZE", "1.5"},
      {"SPYRE_DEVICES", "0,0"},  {"SPYRE_DEVICES", "8"},   {"SPYRE_DEVICES", "a"},     {"SPYRE_DEVICES", "1,,2"},
      {"SPYRE_MEMORY_GB", "-1"}, {"SPYRE_MEMORY_GB", "x"}, {"SPYRE_MEMORY_GB", "nan"}, {"SENCORES", "33"},
      {"SENCORES", "2.5"},       {"SENCORES", "0"},        {"SPYRE_THREADS", "two"}};
  for (const auto& [name, value] : wrong) {
    Setting setting(name, value);
    const std::string start = std::string(name) + "=" + value + ": expected";
    CHECK_THROWS(given(), ConfigurationError, start.c_str());
  }
}

TEST("runtime: the hardware description") {
  CHECK_THROWS(Hardware::from_file("/nonexistent"), ConfigurationError,
               "cannot read the hardware description /nonexistent");
  const std::string path = "/tmp/spyre_hardware_test_" + std::to_string(getpid());
  const auto read_from = [&](const char* text) {
    std::ofstream(path) << text;
    return Hardware::from_file(path);
  };
  CHECK(read_from("# nothing\n\n  a = 1.5e3  # why\nb=-2\r\n")["a"] == 1500);
  CHECK_THROWS(read_from("a = 1\n")["b"], ConfigurationError, "lacks b");
  for (const char* text : {"a = x", "a 1", "= 1", "a = 1x", "a ="})
    CHECK_THROWS(read_from((std::string("ok = 1\n") + text).c_str()), ConfigurationError,
                 ":2: expected `name = number`");
  unlink(path.c_str());
}

TEST("clock: times grow with bytes and shrink with cores") {
  const Clock clock(Hardware::from_file(SPYRE_HARDWARE_FILE));
  CHECK(clock.host_transfer(0) == 0);
  CHECK(clock.host_transfer(12'000'000) == 375'000'000);      // 32 GB/s
  CHECK(clock.host_transfer(200'000'000) == 28'571'428'571);  // 7 GB/s
  CHECK(clock.host_transfer(400'000'000) == 57'142'857'143);
  for (int64_t bytes = 1 << 10; bytes < 1 << 30; bytes *= 4) {
    CHECK(clock.host_transfer(bytes) < clock.host_transfer(bytes * 4));
    const auto move = [&](int64_t read, int64_t written, int cores = 32, bool restickifies = false) {
      return clock.kernel(move_of(read, written, cores, restickifies));
    };
    CHECK(move(bytes, bytes) < move(bytes * 2, bytes));
    CHECK(move(bytes, bytes) < move(bytes, bytes, 32, true));
    CHECK(move(bytes, bytes) < move(bytes, bytes, 16));
  }
  CHECK(clock.kernel(move_of(153'500'000, 0, 32, false)) == 1'000'973'600);  // 1 ms at 153.5 GB/s, 0.97 us fixed
}
