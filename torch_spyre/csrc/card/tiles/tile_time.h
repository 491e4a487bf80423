// The modelled time of a tile program, by the card's clock, from what its cores did.
#pragma once

#include <vector>

#include "card/clock/clock.h"
#include "card/tiles/interpreter.h"

namespace spyre::tiles {

struct TileTime {
  StepTime step;
  int64_t critical_core = 0;            // the one that computes longest
  double vector_ns = 0, matrix_ns = 0;  // of that core
  struct OfRegion {
    const Region* region;
    int64_t read = 0, written = 0;  // bytes, each time that a core moves them
    int64_t unique_read = 0, unique_written = 0;
  };
  std::vector<OfRegion> regions;
  struct Span {
    std::string where;
    double ns;
    bool matrix;
  };
  std::vector<std::vector<Span>> spans;  // of each core, in program order
};

TileTime time_of(const Launch& launch, const Outcome& outcome, const Clock& clock);

}  // namespace spyre::tiles
