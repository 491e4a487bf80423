#include "card/tiles/values.h"

#include <bit>
#include <new>

#include "card/error.h"

namespace spyre::tiles {

namespace {

constexpr std::align_val_t kAlignment{128};
constexpr int kClasses = 40;
constexpr int64_t kSlack = 256;              // bytes behind the end that whole sticks may touch
constexpr int64_t kKept = int64_t{1} << 28;  // bytes that one thread keeps

}  // namespace

struct Buffer::Pool {
  std::array<std::vector<Block*>, kClasses> free;
  int64_t kept = 0;
  ~Pool() {
    for (auto& list : free)
      for (Block* block : list) ::operator delete(block, kAlignment);
  }
};

Buffer::Pool& Buffer::pool() {
  thread_local Pool pool;
  return pool;
}

Buffer::Buffer(int64_t bytes) {
  const auto needed = uint64_t(std::max<int64_t>(bytes, 1)) + kHeader + kSlack;
  const int size_class = std::bit_width(needed - 1);
  if (size_class >= kClasses) throw InvalidProgram("a tile of " + std::to_string(bytes) + " bytes");
  auto& list = pool().free[size_t(size_class)];
  if (list.empty()) {
    void* memory = ::operator new(size_t{1} << size_class, kAlignment);
    block_ = new (memory) Block{{1}, size_class};
  } else {
    block_ = list.back();
    list.pop_back();
    pool().kept -= int64_t{1} << size_class;
    block_->holders.store(1, std::memory_order_relaxed);
  }
}

void Buffer::release() {
  if (!block_ || block_->holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const int64_t bytes = int64_t{1} << block_->size_class;
  if (pool().kept + bytes > kKept) {
    ::operator delete(block_, kAlignment);
  } else {
    pool().kept += bytes;
    pool().free[size_t(block_->size_class)].push_back(block_);
  }
  block_ = nullptr;
}

void Shape::push(int64_t n) {
  if (rank == kMostRank)
    throw InvalidProgram("a tile or view has more than " + std::to_string(kMostRank) + " dimensions");
  size[size_t(rank++)] = n;
}

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace spyre::tiles
