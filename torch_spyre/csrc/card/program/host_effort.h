// What a program asks the host to do beyond what elements of its steps account for: a few bytes could ask for years.
#pragma once

#include "card/program/program.h"

namespace spyre {

// Steps do not pay for each other.
struct HostEffort {
  double points = 0, multiplications = 0;

  void add(const Step& step);
};

}  // namespace spyre
