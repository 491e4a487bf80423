// The floating-point environment of a thread while it works for the card.
#pragma once

#include <cfenv>

namespace spyre {

// The card has no flush-to-zero and rounds to nearest, whatever the process has set for its threads.
class FloatEnvironment {
 public:
  FloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

}  // namespace spyre
