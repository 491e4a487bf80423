// Where the counters of a process are: in a file that other processes of the user can read, or in memory alone.
#pragma once

#include <memory>
#include <string>

#include "card/telemetry/counters.h"

namespace spyre {

class Publisher {
 public:
  // Published in a directory of the caller's own, which is made where it is missing. Where it cannot be used, or none
  // is given, the counters are in memory alone: nothing that a program does depends on them.
  Publisher(const std::string& directory, int mode, int cards);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  CardCounters& card(int index) { return counters_->card[index]; }
  // From now on readers take the file for one: the cards have said what they are.
  void show();
  // Removes the file; the counters stay.
  void withdraw() noexcept;

  // The same for every process of a user, whatever its environment: else they would not find each other.
  static std::string default_directory();

 private:
  void publish(const std::string& directory);

  std::unique_ptr<ProcessCounters> own_;  // where nothing is published
  ProcessCounters* counters_ = nullptr;
  std::string file_;  // empty: none
};

}  // namespace spyre
