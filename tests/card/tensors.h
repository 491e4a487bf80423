// Tensors on a card without PyTorch.
#pragma once

#include <utility>
#include <vector>

#include "card/card.h"

namespace spyre::testing {

using Wait = Card::Wait;

inline Options options(Mode mode = Mode::run, std::vector<int> visible = {0}) {
  Options result;
  result.mode = mode;
  result.visible = std::move(visible);
  result.memory_gb = 1;
  result.threads = 2;
  result.hardware_file = SPYRE_HARDWARE_FILE;
  return result;
}

// A tensor on a card: memory, the layout and the host shape it was made for.
struct Tensor {
  Card& card;
  Layout layout;
  HostType type;
  Dims size, strides;
  Block* block;

  Tensor(Card& card, Layout layout, HostType type, Dims size)
      : card(card),
        layout(std::move(layout)),
        type(type),
        size(std::move(size)),
        strides(contiguous_strides(this->size)),
        block(card.allocate(this->layout.device_bytes())) {}
  Tensor(Card& card, HostType type, const Dims& size, const Dims& order = {})
      : Tensor(card, default_layout(size, contiguous_strides(size), format_of(type), order), type, size) {}
  Tensor(const Tensor&) = delete;
  ~Tensor() { card.memory().release(block); }

  Held held() const { return {&card.memory(), block}; }
  DeviceView view() const { return {held(), &layout, type, size, strides, 0}; }
  DeviceView view(Dims view_size, Dims view_strides, int64_t offset = 0) const {
    return {held(), &layout, type, std::move(view_size), std::move(view_strides), offset};
  }
};

template <typename Value>
HostView host_view(std::vector<Value>& values, HostType type, Dims size) {
  Dims strides = contiguous_strides(size);
  return {values.data(), type, std::move(size), std::move(strides), {}};
}

template <typename Value>
void write(const Tensor& to, std::vector<Value> values, int stream = 0) {
  to.card.to_card(to.view(), host_view(values, to.type, to.size), stream, Wait::yes);
}

template <typename Value>
std::vector<Value> read(const Tensor& from, int stream = 0) {
  std::vector<Value> values(product(from.size), Value{77});
  from.card.to_host(host_view(values, from.type, from.size), from.view(), stream, Wait::yes);
  return values;
}

inline std::vector<float> floats(int64_t count, float first = 0) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

inline uint32_t bits(float value) { return __builtin_bit_cast(uint32_t, value); }

}  // namespace spyre::testing
