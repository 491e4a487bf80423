// Memory that a thread uses again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace spyre {

// Grows to the largest need and is kept, so that the hot path does not allocate. Contents do not survive growing.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  std::byte* bytes(int64_t count) {
    if (count > size_) {
      release();
      size_ = 0;
      data_ = static_cast<std::byte*>(::operator new(static_cast<size_t>(count), kAlignment));
      size_ = count;
    }
    return data_;
  }
  float* floats(int64_t count) { return reinterpret_cast<float*>(bytes(count * int64_t{sizeof(float)})); }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  void release() {
    if (data_) ::operator delete(std::exchange(data_, nullptr), kAlignment);
  }
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace spyre
