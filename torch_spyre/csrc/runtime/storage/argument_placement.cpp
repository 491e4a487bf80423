#include "runtime/storage/argument_placement.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <utility>

#include "runtime/storage/storage.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre {

std::vector<ArgumentPlacement> argument_placements(const std::vector<at::Tensor>& tensors) {
  std::vector<ArgumentPlacement> placements;
  placements.reserve(tensors.size());
  std::vector<std::pair<const void*, int64_t>> blocks;  // with positions: sorted, those of a block begin with its first
  blocks.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    SpyreStorageImpl& storage = storage_of(tensor);
    const auto position = static_cast<int64_t>(placements.size());
    blocks.emplace_back(storage.held().block, position);
    placements.push_back({&storage.layout(), tensor.storage_offset() + storage.base_offset, position});
  }
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i)
    if (blocks[i].first == blocks[i - 1].first)
      placements[blocks[i].second].first_sharer = placements[blocks[i - 1].second].first_sharer;
  return placements;
}

namespace {

MovedArgument unmoved(const at::Tensor& tensor) {
  return {tensor.storage_offset() + storage_of(tensor).base_offset, 0};
}

}  // namespace

MovedArguments unmoved(c10::ArrayRef<const at::Tensor*> tensors) {
  MovedArguments places;
  for (const at::Tensor* tensor : tensors) places.push_back(unmoved(*tensor));
  return places;
}

// The layout takes a host offset apart, from the largest unit down: into a coordinate, and a rest for smaller units. A
// coordinate can begin at 0 instead, unless some element of the tensor carries into a larger one: all elements then
// move by the same distance.
MovedArgument moved_to_start(const at::Tensor& tensor) {
  const SpyreStorageImpl& storage = storage_of(tensor);
  MovedArgument place = unmoved(tensor);
  if (tensor.storage_offset() == 0 || storage.base_offset != 0 || storage.zero_tail || storage.untyped ||
      tensor.numel() == 0 || stored_per_element(tensor.scalar_type()) != 1)
    return place;
  const spyre::Layout& layout = storage.layout();
  const int64_t element = spyre::element_bytes(layout.format);
  int64_t rest = place.offset, inner = 0;  // how far the dimensions reach that stay below the unit
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> dims;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    dims.emplace_back(tensor.stride(d), (tensor.size(d) - 1) * tensor.stride(d));
    inner += dims.back().second;
  }
  for (const spyre::Level& level : spyre::places(layout).levels) {
    const int64_t coordinate = rest / level.unit, bytes = level.device_stride * element;
    rest %= level.unit;
    if (coordinate && bytes % spyre::kStickBytes == 0) {
      place.offset -= coordinate * level.unit;
      place.shift += coordinate * bytes;
    }
    for (auto& [stride, reach] : dims)
      if (stride % level.unit == 0) inner -= std::exchange(reach, 0);
    if (rest + inner >= level.unit) break;
  }
  return place;
}

at::Tensor at_place(const at::Tensor& tensor, const MovedArgument& place) {
  return tensor.as_strided(tensor.sizes(), tensor.strides(), place.offset);
}

MovedArguments moved_to_start(c10::ArrayRef<const at::Tensor*> tensors) {
  MovedArguments places;
  bool moved = false;
  for (const at::Tensor* tensor : tensors) {
    places.push_back(moved_to_start(*tensor));
    moved |= places.back().shift != 0;
  }
  if (!moved) return places;
  c10::SmallVector<std::pair<const spyre::Block*, size_t>, 8> blocks;
  for (size_t i = 0; i < tensors.size(); ++i) blocks.emplace_back(storage_of(*tensors[i]).held().block, i);
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i)
    if (blocks[i].first == blocks[i - 1].first)
      for (const size_t k : {blocks[i - 1].second, blocks[i].second}) places[k] = unmoved(*tensors[k]);
  return places;
}

}  // namespace torch_spyre
