#include "card/telemetry/publisher.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

namespace spyre {

namespace {

constexpr int kMostSwept = 4096;  // files looked at when a card starts

// Field 22 of /proc/self/stat; names of programs may have spaces and brackets, so it is counted from the last one.
uint64_t started_ticks() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  size_t at = end + 1;
  for (int field = 3; field <= 22 && at != std::string::npos; ++field) at = text.find(' ', at + (field > 3));
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

// Process ids mean nothing to processes of another namespace, which may share the directory.
uint64_t pid_namespace() {
  struct stat found{};
  return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

// The descriptor of a directory that only the caller can write; -1 where it is not one.
int opened(const std::string& directory) {
  mkdir(directory.c_str(), 0700);
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat found{};
  if (descriptor < 0) return -1;
  if (fstat(descriptor, &found) != 0 || found.st_uid != geteuid() || (found.st_mode & 0022) ||
      fchmod(descriptor, 0700) != 0) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

// Files of processes that were killed: they would fill the directory where nobody runs `spyre smi`.
void sweep(int directory, uint64_t pid_namespace) {
  const int own = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* files = own < 0 ? nullptr : fdopendir(own);
  if (!files) {
    if (own >= 0) close(own);
    return;
  }
  for (int i = 0; i < kMostSwept; ++i) {
    const dirent* file = readdir(files);
    if (!file) break;
    long pid = 0;
    unsigned long long ticks = 0, space = 0;
    int length = 0;
    if (std::sscanf(file->d_name, "%ld-%llu-%llu%n", &pid, &ticks, &space, &length) != 3 || file->d_name[length] ||
        space != pid_namespace || pid <= 0)
      continue;
    if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) unlinkat(directory, file->d_name, 0);
  }
  closedir(files);
}

}  // namespace

std::string Publisher::default_directory() {
  struct stat found{};
  const bool shared = stat("/dev/shm", &found) == 0 && S_ISDIR(found.st_mode);
  return (shared ? "/dev/shm/torch_spyre_" : "/tmp/torch_spyre_") + std::to_string(geteuid());
}

Publisher::Publisher(const std::string& directory, int mode, int cards) {
  if (!directory.empty()) publish(directory);
  if (!counters_) {
    own_ = std::make_unique<ProcessCounters>();
    counters_ = own_.get();
  }
  counters_->version.set(ProcessCounters::kVersion);
  counters_->bytes.set(sizeof(ProcessCounters));
  counters_->mode.set(mode);
  counters_->cards.set(cards);
}

void Publisher::publish(const std::string& directory) {
  const uint64_t ticks = started_ticks(), space = pid_namespace();
  const int descriptor = opened(directory);
  if (descriptor < 0) return;
  sweep(descriptor, space);
  const std::string name = std::to_string(getpid()) + "-" + std::to_string(ticks) + "-" + std::to_string(space);
  unlinkat(descriptor, name.c_str(), 0);  // of a card that this process had before
  const int file = openat(descriptor, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  // All of it is there before it is used: a write to a page for which there is no room would end the process.
  void* mapped = MAP_FAILED;
  if (file >= 0 && posix_fallocate(file, 0, sizeof(ProcessCounters)) == 0)
    mapped = mmap(nullptr, sizeof(ProcessCounters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (mapped == MAP_FAILED) {
    unlinkat(descriptor, name.c_str(), 0);
    close(descriptor);
    return;
  }
  counters_ = new (mapped) ProcessCounters;
  counters_->pid.set(getpid());
  counters_->started_ticks.set(ticks);
  counters_->pid_namespace.set(space);
  close(descriptor);
  file_ = directory + "/" + name;
}

void Publisher::show() { counters_->magic.store(ProcessCounters::kMagic, std::memory_order_release); }

void Publisher::withdraw() noexcept {
  if (!file_.empty()) unlink(file_.c_str());
  file_.clear();
}

Publisher::~Publisher() {
  withdraw();
  if (!own_) munmap(counters_, sizeof(ProcessCounters));
}

}  // namespace spyre
