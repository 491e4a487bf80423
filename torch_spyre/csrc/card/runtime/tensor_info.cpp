#include "card/runtime/tensor_info.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace spyre {

namespace {

thread_local TensorInfos described;

std::string list(const Dims& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

// The host offset of an element of device memory; none for padding.
std::optional<int64_t> host_offset(const Layout& layout, int64_t element) {
  int64_t offset = 0;
  for (size_t i = layout.device_size.size(); i-- > 0;) {
    const int64_t coordinate = element % layout.device_size[i];
    element /= layout.device_size[i];
    if (layout.stride_map[i] < 0 && coordinate) return std::nullopt;
    if (layout.stride_map[i] > 0) offset += coordinate * layout.stride_map[i];
  }
  if (element) return std::nullopt;
  return offset;
}

std::optional<Dims> index_of(const TensorInfo& tensor, int64_t offset) {
  Dims index(tensor.size.size(), 0);
  std::vector<size_t> order(index.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensor.strides[a] > tensor.strides[b]; });
  for (const size_t i : order) {
    if (tensor.strides[i] <= 0 || tensor.size[i] == 1) continue;
    index[i] = offset / tensor.strides[i];
    offset -= index[i] * tensor.strides[i];
    if (index[i] >= tensor.size[i]) return std::nullopt;
  }
  return offset ? std::nullopt : std::optional(index);
}

}  // namespace

std::string TensorInfo::text() const { return type + list(size); }

std::string TensorInfo::element(int64_t byte) const {
  const auto found = host_offset(layout, byte / element_bytes(layout.format));
  const auto index = found && *found >= offset ? index_of(*this, *found - offset) : std::nullopt;
  return index ? "element " + list(*index) : "byte " + std::to_string(byte);
}

DescribedArguments::DescribedArguments(TensorInfos arguments)
    : before_(std::exchange(described, std::move(arguments))) {}

DescribedArguments::~DescribedArguments() { described = std::move(before_); }

const TensorInfos& DescribedArguments::current() { return described; }

}  // namespace spyre
