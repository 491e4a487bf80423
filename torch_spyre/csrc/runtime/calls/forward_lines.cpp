// PyTorch numbers the autograd nodes of each thread, and a node knows its thread and its number. A thread notes the
// lines of its newest nodes in a ring: a slot belongs to the number that it holds, and an older node is not known.
#include "runtime/calls/forward_lines.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/node.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "card/card.h"

namespace torch_spyre {

namespace {

constexpr size_t kNewest = 1 << 14;
// An op makes its node before it calls the card, and views make nodes without calling it.
constexpr uint64_t kMostNodesOfAnOp = 16;

class Ring {
 public:
  void note(uint64_t number, const spyre::Origin& line) {
    const std::lock_guard lock(mutex_);
    slots_[number % kNewest] = {number, line};
  }
  // Of the first op that was called when the node was there. Leaves `found` as it is where that is not known.
  void find(uint64_t node, spyre::Origin& found) {
    const std::lock_guard lock(mutex_);
    if (node == UINT64_MAX) return;  // a node that adds up the gradients of a parameter
    for (uint64_t number = node + 1; number <= node + kMostNodesOfAnOp; ++number) {
      const Slot& slot = slots_[number % kNewest];
      if (slot.number != number) continue;
      found = slot.line;
      return;
    }
  }

 private:
  struct Slot {
    uint64_t number = 0;  // that the next node gets; 0: none, as the first node has made it 1
    spyre::Origin line;
  };
  std::mutex mutex_;  // against backward passes of other threads
  std::array<Slot, kNewest> slots_{};
};

struct Rings {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Ring>> of_thread;
};

Rings& rings() {
  static auto* all = new Rings;  // threads may outlive static objects
  return *all;
}

std::shared_ptr<Ring> new_ring() {
  auto ring = std::make_shared<Ring>();
  const std::lock_guard lock(rings().mutex);
  std::erase_if(rings().of_thread, [](const auto& each) { return each.second.expired(); });
  rings().of_thread[at::RecordFunction::currentThreadId()] = ring;
  return ring;
}

std::shared_ptr<Ring> ring_of(uint64_t thread) {
  const std::lock_guard lock(rings().mutex);
  const auto found = rings().of_thread.find(thread);
  return found == rings().of_thread.end() ? nullptr : found->second.lock();
}

}  // namespace

void note_line(const spyre::Origin& line) {
  thread_local uint64_t noted = 0;
  const uint64_t next = at::sequence_number::peek();
  if (next == noted || spyre::Runtime::forked()) return;  // a child may have inherited a lock that is held
  noted = next;
  thread_local const std::shared_ptr<Ring> ring = new_ring();
  ring->note(next, line);
}

const spyre::Origin* line_of_forward() {
  thread_local spyre::Origin line;
  if (const auto node = torch::autograd::get_current_node()) {
    if (const auto ring = ring_of(node->thread_id())) ring->find(node->sequence_nr(), line);
  }
  return line.code ? &line : nullptr;
}

}  // namespace torch_spyre
