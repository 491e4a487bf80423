#include "runtime/storage/argument_placement.h"

#include <algorithm>

#include "runtime/storage/storage.h"

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

}  // namespace torch_spyre
