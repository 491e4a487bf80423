// Tensors as the host's program knows them, so that strict mode can name them and their elements.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "card/memory/layout.h"

namespace spyre {

// A strided view, in host offsets, of a tensor on the card.
struct TensorInfo {
  std::string type;  // as the host's program calls it
  Dims size, strides;
  int64_t offset = 0;
  Layout layout;

  // "float16[4, 100]"
  std::string text() const;
  // "element [1, 70]" for the element whose first byte this is in memory; the byte itself where it belongs to none.
  std::string element(int64_t byte) const;
};
using TensorInfos = std::shared_ptr<const std::vector<TensorInfo>>;

// While it lives, launches of this thread are of these arguments: errors that are found later name them.
class DescribedArguments {
 public:
  explicit DescribedArguments(TensorInfos arguments);
  ~DescribedArguments();
  DescribedArguments(const DescribedArguments&) = delete;
  DescribedArguments& operator=(const DescribedArguments&) = delete;
  // Of the launch that this thread makes or carries out; null where nobody described them.
  static const TensorInfos& current();

 private:
  TensorInfos before_;
};

}  // namespace spyre
