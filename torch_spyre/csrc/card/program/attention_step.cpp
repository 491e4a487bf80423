#include "card/program/attention_step.h"

#include <algorithm>

namespace spyre {

int64_t keys_met(const Step& step, int64_t row) {
  const int64_t length = step.extents[step.extents.size() - attention::kLength];
  return step.constants[attention::kCausal] != 0 ? std::min(length, (row / kKeys + 1) * kKeys) : length;
}

}  // namespace spyre
