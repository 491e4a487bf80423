#include "distributed/monitored_barrier.h"

#include <cctype>
#include <thread>

#include "card/error.h"

namespace torch_spyre::distributed {

using spyre::CollectiveFailed;

namespace {

constexpr const char* kAnswer = "answer";
constexpr const char* kAllHere = "all here";
constexpr std::chrono::milliseconds kPause{2};
constexpr std::chrono::seconds kAnswerTime{5};  // beyond the time-out, for the first member's answer to arrive

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string capitalized(std::string name) {
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

std::string number(const std::string& name) { return name.substr(name.find(' ') + 1); }

}  // namespace

std::string MonitoredBarrier::key(uint64_t call, const std::string& of) {
  return "spyreccl/barrier/" + std::to_string(call) + "/" + of;
}

void MonitoredBarrier::forget(uint64_t call) {
  store_->deleteKey(key(call, kAnswer));
  for (size_t rank = 1; rank < names_.size(); ++rank) store_->deleteKey(key(call, std::to_string(rank)));
}

bool MonitoredBarrier::await(const std::string& key, Deadline deadline, const std::function<bool()>& interrupted) {
  while (!store_->check({key})) {
    if (interrupted && interrupted()) throw CollectiveFailed("monitored_barrier: interrupted");
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

std::string MonitoredBarrier::missing(Deadline deadline, bool names_all, const std::function<bool()>& interrupted) {
  std::vector<std::string> missing;
  for (size_t rank = 1; rank < names_.size(); ++rank)
    if (!await(key(call_, std::to_string(rank)), deadline, interrupted)) missing.push_back(names_[rank]);
  if (missing.empty()) return "";
  if (!names_all || missing.size() == 1) return capitalized(missing.front());
  std::string text;
  for (const std::string& name : missing) text += (text.empty() ? "Ranks " : ", ") + number(name);
  return text;
}

// The messages are those of Gloo, which users' scripts and PyTorch's tests look for.
void MonitoredBarrier::wait(std::chrono::milliseconds timeout, bool names_all,
                            const std::function<bool()>& interrupted) {
  const std::string me = capitalized(names_[rank_]);
  const std::string within = " in " + std::to_string(timeout.count()) + " ms";
  if (timeout.count() <= 0) throw CollectiveFailed(me + " timed out in monitoredBarrier after 0 ms");
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  ++call_;
  if (rank_ != 0) {
    store_->set(key(call_, std::to_string(rank_)), bytes("here"));
    const std::string reached = me + " successfully reached monitoredBarrier, but received errors while waiting for " +
                                "send/recv from " + names_[0] + ": ";
    if (!await(key(call_, kAnswer), deadline + kAnswerTime, interrupted))
      throw CollectiveFailed(reached + capitalized(names_[0]) + " failed to pass monitoredBarrier" + within);
    const std::vector<uint8_t> answer = store_->get(key(call_, kAnswer));
    if (const std::string text(answer.begin(), answer.end()); text != kAllHere) throw CollectiveFailed(reached + text);
    return;
  }
  const std::string missing = this->missing(deadline, names_all, interrupted);
  const std::string answer = missing.empty() ? kAllHere : missing + " failed to pass monitoredBarrier" + within;
  store_->set(key(call_, kAnswer), bytes(answer));
  if (!missing.empty()) throw CollectiveFailed(answer);
  // All have come, so that they have read the answer to the call before.
  if (call_ > 1) forget(call_ - 1);
}

}  // namespace torch_spyre::distributed
