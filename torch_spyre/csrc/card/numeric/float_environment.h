// How a thread computes while it works for the card.
#pragma once

#include <cfenv>

namespace spyre {

// The card knows no flush-to-zero and rounds to nearest, whatever the process has set for its threads.
class CardArithmetic {
 public:
  CardArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~CardArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

}  // namespace spyre
