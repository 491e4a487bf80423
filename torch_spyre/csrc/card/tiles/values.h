// What a core of a tile program holds: tiles in memory that threads use again and again, views, access tiles, scalars.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "card/tiles/affine.h"
#include "card/tiles/element_types.h"

namespace spyre::tiles {

constexpr int kMostRank = 8;

struct Shape {
  int rank = 0;
  std::array<int64_t, kMostRank> size{};

  int64_t operator[](int i) const { return size[size_t(i)]; }
  int64_t& operator[](int i) { return size[size_t(i)]; }
  bool operator==(const Shape& other) const {
    return rank == other.rank && std::equal(size.begin(), size.begin() + rank, other.size.begin());
  }
  int64_t elements() const {  // at most what the caller has checked
    int64_t all = 1;
    for (int i = 0; i < rank; ++i) all *= size[size_t(i)];
    return all;
  }
  void push(int64_t n);                             // throws InvalidProgram beyond kMostRank
  std::array<int64_t, kMostRank> strides() const {  // in elements, the last dimension innermost
    std::array<int64_t, kMostRank> result{};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      result[size_t(i)] = stride;
      stride *= size[size_t(i)];
    }
    return result;
  }
};
std::string text_of(const Shape& shape);

// Memory of tiles, counted by who holds it. Freed memory stays with the thread that freed it, by size, because a tile's
// pages would otherwise be mapped and cleared again for each. A whole stick may be read beyond the end.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  Buffer(const Buffer& other) : block_(other.block_) {
    if (block_) block_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  Buffer(Buffer&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Buffer() { release(); }

  std::byte* data() const { return block_ ? reinterpret_cast<std::byte*>(block_) + kHeader : nullptr; }
  bool shared() const { return block_ && block_->holders.load(std::memory_order_acquire) > 1; }

 private:
  struct Block {
    std::atomic<int> holders;
    int size_class;
  };
  struct Pool;
  static constexpr size_t kHeader = 128;
  static Pool& pool();
  void release();
  Block* block_ = nullptr;
};

// Elements in row-major order. Nobody writes into a buffer that is shared.
struct Tile {
  ElementType type = ElementType::f32;
  Shape shape;
  Buffer buffer;

  Tile() = default;
  Tile(ElementType type, const Shape& shape) : type(type), shape(shape), buffer(bytes(type, shape)) {}
  static int64_t bytes(ElementType type, const Shape& shape) { return shape.elements() * held_bytes(type); }
  float* reals() const { return reinterpret_cast<float*>(buffer.data()); }
  int64_t* integers() const { return reinterpret_cast<int64_t*>(buffer.data()); }
  std::byte* at(int64_t element) const { return buffer.data() + element * held_bytes(type); }
  int64_t elements() const { return shape.elements(); }
};

// A strided view of memory; no memory of its own. Offsets and strides count elements of its type.
struct View {
  ElementType type = ElementType::f32;
  int64_t base = 0;
  int lx_core = -1;  // whose scratchpad; -1: memory that all cores share
  Shape sizes, strides, first;
  BoundSet coordinates;                            // of the elements, where that is not the box [first, first + sizes)
  std::vector<std::shared_ptr<const View>> parts;  // of a distributed view, which has no memory of its own
};

// Which elements of a view a tile has, and in which order.
struct Access {
  std::shared_ptr<const View> view;
  Shape shape;  // of the tile
  // Direct: element i of the tile is at base + low + i, dimension by dimension of the view.
  std::array<int64_t, kMostRank> base{}, low{};
  std::array<int, kMostRank> order{};  // dimension k of the tile is dimension order[k] of the view
  BoundSet set;                        // of what is relative to base; empty rows: the whole box
  // Indirect: subscripts over the variables, which count from `low` in the order of `order`.
  struct Subscript {
    std::shared_ptr<const View> index;  // null: the expression itself
    std::vector<BoundExpression> at;
  };
  std::vector<Subscript> subscripts;
};

struct Future;

struct Value {
  enum class Kind : uint8_t { none, integer, real, tile, view, access, future } kind = Kind::none;
  int64_t integer = 0;
  float real = 0;
  Tile tile;
  std::shared_ptr<const View> view;
  std::shared_ptr<const Access> access;
  std::shared_ptr<Future> future;
};

}  // namespace spyre::tiles
