// Counters: what they count, and the file that other processes read.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "card/card.h"
#include "streams.h"
#include "tensors.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

// A directory that goes away with the test.
struct Directory {
  std::string path = "/tmp/telemetry_test_XXXXXX";
  Directory() { CHECK(mkdtemp(path.data()) != nullptr); }
  ~Directory() {
    for (const std::string& name : files()) unlink((path + "/" + name).c_str());
    rmdir(path.c_str());
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    DIR* opened = opendir(path.c_str());
    while (const dirent* file = readdir(opened))
      if (file->d_name[0] != '.') names.emplace_back(file->d_name);
    closedir(opened);
    return names;
  }
};

}  // namespace

TEST("counters: tasks of two streams that overlap are one time at work") {
  CardCounters counters;
  Meter meter(counters);
  meter.begin();
  CHECK(static_cast<int64_t>(counters.work.working_ns.get()) < 0);  // under way
  meter.begin();
  meter.end();
  CHECK(static_cast<int64_t>(counters.work.working_ns.get()) < 0);
  meter.end();
  const auto worked = static_cast<int64_t>(counters.work.working_ns.get());
  CHECK(worked > 0 && worked < 1'000'000'000);
}

TEST("counters: the engine counts what is submitted, completed and carried out") {
  CardCounters counters;
  Meter meter(counters);
  Streams streams(2);
  for (Stream& stream : streams.all) stream.meter = &meter;
  Engine engine(2, false);
  const Usage usage{.busy_ps = 7, .matrix_ps = 5, .kernels = 1, .bytes_read = 3};
  for (int i = 0; i < 10; ++i) engine.submit(streams[i % 2], task_of([] {}, usage));
  engine.submit(streams[1], {[] {}, 0, true});
  for (Stream& stream : streams.all) engine.wait(stream, never);
  CHECK(counters.work.busy_ps.get() == 70 && counters.work.matrix_ps.get() == 50);
  CHECK(counters.work.kernels.get() == 10 && counters.work.bytes_read.get() == 30);
  CHECK(counters.streams[0].issued.get() == 5 && counters.streams[0].completed.get() == 5);
  CHECK(counters.streams[1].issued.get() == 6 && counters.streams[1].time_ps.get() == 35);
  CHECK(static_cast<int64_t>(counters.work.working_ns.get()) > 0);
}

TEST("counters: a card counts its copies and its memory") {
  Runtime runtime(options());
  const CardCounters& counters = runtime.card(0).counters();
  {
    Tensor tensor(runtime.card(0), HostType::F16, {64, 64});
    CHECK(counters.memory.allocated.get() == 8192 && counters.memory.reserved.get() >= 8192);
    std::vector<uint16_t> values(64 * 64);
    const HostView host{values.data(), HostType::F16, {64, 64}, {64, 1}, {}};
    runtime.card(0).to_card(tensor.view(), host, 0, Wait::yes);
    runtime.card(0).to_host(host, tensor.view(), 0, Wait::yes);
    runtime.card(0).fill(tensor.view(), 0, 0);
    runtime.card(0).synchronize();
  }
  CHECK(counters.memory.allocated.get() == 0 && counters.memory.peak.get() == 8192);
  CHECK(counters.work.transfers.get() == 2 && counters.work.kernels.get() == 1);
  CHECK(counters.work.bytes_from_host.get() == 8192 && counters.work.bytes_to_host.get() == 8192);
  CHECK(counters.work.bytes_written.get() == 2 * 8192);  // what comes from the host is written, too
  Stream& stream = runtime.card(0).stream(0);
  CHECK(counters.work.busy_ps.get() == static_cast<uint64_t>(runtime.card(0).engine().time(stream)));
}

TEST("counters: the file is there as long as the card is, for its user alone") {
  const Directory directory;
  {
    Publisher publisher(directory.path, 0, 1);
    publisher.show();
    const auto files = directory.files();
    CHECK(files.size() == 1 && files[0].rfind(std::to_string(getpid()) + "-", 0) == 0);
    struct stat found{};
    CHECK(stat((directory.path + "/" + files[0]).c_str(), &found) == 0);
    CHECK((found.st_mode & 0777) == 0600 && found.st_size == sizeof(ProcessCounters));
    publisher.card(0).work.kernels.add(5);
    std::ifstream file(directory.path + "/" + files[0], std::ios::binary);
    ProcessCounters read;
    file.read(reinterpret_cast<char*>(&read), sizeof read);
    CHECK(read.magic == ProcessCounters::kMagic && read.card[0].work.kernels.get() == 5);
  }
  CHECK(directory.files().empty());
}

TEST("counters: a file of a process that is gone is removed, others are not") {
  const Directory directory;
  Publisher(directory.path, 0, 1).show();
  struct stat space{};
  const uint64_t own = stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
  // Process numbers end at 2^22.
  for (const std::string& name :
       {"9999999-1-" + std::to_string(own), std::string("9999999-1-1"), std::string("notes.txt")})
    std::ofstream(directory.path + "/" + name) << "";
  const Publisher publisher(directory.path, 0, 1);
  CHECK(directory.files().size() == 3);
}

TEST("counters: a directory that cannot be used is none") {
  const Directory directory;
  chmod(directory.path.c_str(), 0777);
  Publisher open(directory.path, 0, 1);
  CHECK(directory.files().empty());
  open.card(0).work.kernels.add(1);  // in memory
  CHECK(open.card(0).work.kernels.get() == 1);
  Publisher nowhere("/proc/none", 0, 1);
  nowhere.card(7).work.kernels.add(1);
}
