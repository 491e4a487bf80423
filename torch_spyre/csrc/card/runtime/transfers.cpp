// Copies and fills: a view is lowered through its layout into loop nests, which a stream's task goes over.
#include <algorithm>
#include <cstring>
#include <functional>

#include "card/card.h"
#include "card/clock/work.h"
#include "card/error.h"
#include "card/kernels/copy_fill.h"
#include "card/memory/shadow.h"
#include "card/runtime/tensor_info.h"

namespace spyre {

namespace {

int64_t element_bytes(const DeviceView& view) { return element_bytes(view.layout->format); }

void check(const DeviceView& view) {
  if (view.layout->format != format_of(view.type))
    throw InvalidLayout(std::string(name(view.type)) + " is " + name(format_of(view.type)) +
                        " on the card, not as in " + view.layout->str());
  if (!view.held.block) throw InvalidLayout("the tensor has no memory, and needs some for " + view.layout->str());
  const auto bytes = static_cast<int64_t>(view.held.block->bytes);
  if (view.layout->device_bytes() > bytes)
    throw InvalidLayout("the tensor has " + std::to_string(bytes) + " bytes of memory, too few for " +
                        view.layout->str());
}

void check_pair(const Dims& to, const Dims& from) {
  if (to != from) throw Error("a copy needs equal sizes on both sides");
}

void check_range(const Held& held, int64_t offset, int64_t bytes) {
  const int64_t size = held.block ? static_cast<int64_t>(held.block->bytes) : 0;
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset)
    throw Error("bytes [" + std::to_string(offset) + ", " + std::to_string(offset + bytes) +
                ") are not all within a block of " + std::to_string(size));
}

Nest nest_of(const Dims& size, const Dims& to_strides, int64_t to_offset, const Dims& from_strides,
             int64_t from_offset) {
  Nest nest{{}, {to_offset, from_offset}};
  for (size_t i = 0; i < size.size(); ++i) nest.loops.push_back({size[i], {to_strides[i], from_strides[i]}});
  return nest;
}

// With every copy of an element, where a layout replicates it.
std::vector<Nest> lower_written(const Layout& layout, const Nest& nest) {
  const Places where = places(layout);
  std::vector<Nest> nests = lower(where, 0, nest);
  for (Nest& lowered : nests)
    for (const Level& replica : where.replicas) lowered.loops.push_back({replica.extent, {replica.device_stride, 0}});
  return nests;
}

// The dimension of a view that is along the stick; the rank if none is.
size_t stick_dimension(const DeviceView& view) {
  size_t dim = 0;
  while (dim < view.size.size() && (view.size[dim] == 1 || view.strides[dim] != view.layout->stride_map.back())) ++dim;
  return dim;
}

bool restickifies(const DeviceView& to, const DeviceView& from) {
  const size_t written = stick_dimension(to), read = stick_dimension(from), none = to.size.size();
  return written != read && written != none && read != none;
}

Memory::Effect writing(const DeviceView& to) { return to.whole ? Memory::Effect::replaces : Memory::Effect::writes; }

// A block that a task leaves half written holds nothing.
template <typename Body>
void write_into(Block* block, const Body& body) {
  try {
    body();
  } catch (const Stopped&) {
    block->torn = true;
    throw;
  }
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kAtOnce = 4 << 20;
  for (int64_t at = 0; at < bytes; at += kAtOnce) {
    end_if_stopped();
    std::memcpy(to + at, from + at, static_cast<size_t>(std::min(kAtOnce, bytes - at)));
  }
}

[[noreturn]] void out_of_range(HostType type) {
  throw ValueRange(std::string("a value does not fit ") + name(type) + " on the card, which keeps it in " +
                   std::to_string(8 * element_bytes(format_of(type))) +
                   " bits; nothing was truncated, the tensor's contents are undefined until it is written again");
}

// Strict mode: the tensor that a transfer reads, for its messages.
std::shared_ptr<const TensorInfo> info_of(const DeviceView& view, bool strict) {
  if (!strict) return nullptr;
  return std::make_shared<const TensorInfo>(
      TensorInfo{name(view.type), view.size, view.strides, view.offset, *view.layout});
}

void check_written(const char* what, const Shadow& shadow, const Block& block, const Nest& nest, int64_t element_bytes,
                   const TensorInfo& tensor) {
  const int64_t at = shadow.unwritten(block, nest, 1, element_bytes);
  if (at < 0) return;
  throw UndefinedBehavior(std::string(what) + " read device memory that was never written: " + tensor.element(at) +
                          " of a tensor " + tensor.text() + " (SPYRE_CARD=strict); initialise the tensor first");
}

}  // namespace

void Card::to_card(const DeviceView& to, const HostView& from, int stream, Wait wait) {
  check_pair(to.size, from.size);
  if (product(to.size) == 0) return;
  check(to);
  if (from.type != to.type) throw Error(std::string("cannot copy ") + name(from.type) + " into " + name(to.type));
  const uint64_t interrupts = check_contents({&to.held, to.whole ? 0ul : 1ul});
  const int64_t bytes = product(to.size) * element_bytes(to);
  const Usage usage = usage_of_transfer(bytes, Direction::from_host, clock_);
  std::vector<Nest> nests;
  if (mode_ != Mode::timing)
    nests = lower_written(*to.layout, nest_of(to.size, to.strides, to.offset, from.strides, 0));
  const ElementPointer target{address(to.held), element_bytes(to)};
  const ElementPointer source{static_cast<std::byte*>(from.data), host_bytes(from.type)};
  auto run = [this, nests = std::move(nests), target, source, type = to.type, block = to.held.block,
              losses = from.losses] {
    bool good = true;
    write_into(block, [&] {
      for (const Nest& nest : nests) {
        good &= copy_nest(engine_, nest, target, source, host_to_device(type), losses.get());
        if (shadow_) shadow_->wrote(*block, nest, 0, target.element_bytes);
      }
    });
    if (!good) out_of_range(type);
  };
  const Transfer transfer{Transfer::Kind::to_card, 0, bytes};
  submit(stream, task_of(std::move(run), usage), {{to.held, writing(to)}, {from.pinned}}, interrupts, wait, &transfer);
}

void Card::to_host(const HostView& to, const DeviceView& from, int stream, Wait wait) {
  check_pair(to.size, from.size);
  if (product(from.size) == 0) return;
  check(from);
  if (from.type != to.type) throw Error(std::string("cannot copy ") + name(from.type) + " into " + name(to.type));
  const uint64_t interrupts = check_contents({&from.held, 1});
  const int64_t bytes = product(from.size) * element_bytes(from);
  const Usage usage = usage_of_transfer(bytes, Direction::to_host, clock_);
  const Nest nest = nest_of(from.size, to.strides, 0, from.strides, from.offset);
  const ElementPointer target{static_cast<std::byte*>(to.data), host_bytes(to.type)};
  const ElementPointer source{address(from.held), element_bytes(from)};
  std::vector<Nest> nests;
  if (mode_ != Mode::timing) {
    nests = lower(places(*from.layout), 1, nest);
  } else if (to.data) {
    constexpr uint64_t kZero = 0;
    fill_nest(engine_, nest, target, &kZero);
  }
  auto run = [this, nests = std::move(nests), target, source, type = from.type, block = from.held.block,
              info = info_of(from, shadow_ != nullptr)] {
    for (const Nest& nest : nests) {
      if (shadow_) check_written("a copy to the host", *shadow_, *block, nest, source.element_bytes, *info);
      copy_nest(engine_, nest, target, source, device_to_host(type));
    }
  };
  const Transfer transfer{Transfer::Kind::to_host, bytes, 0};
  submit(stream, task_of(std::move(run), usage), {{from.held}, {to.pinned}}, interrupts, wait, &transfer);
}

void Card::on_card(const DeviceView& to, const DeviceView& from, int stream) {
  check_pair(to.size, from.size);
  if (product(to.size) == 0) return;
  check(to);
  check(from);
  const Held used[] = {from.held, to.held};
  const uint64_t interrupts = check_contents({used, to.whole ? 1ul : 2ul});
  const int64_t elements = product(to.size);
  const ElementPointer target{address(to.held), element_bytes(to)}, source{address(from.held), element_bytes(from)};
  const bool peer = from.held.memory != to.held.memory;
  const Usage usage = peer ? usage_of_transfer(elements * target.element_bytes, Direction::from_host, clock_)
                           : usage_of(move_of(elements * source.element_bytes, elements * target.element_bytes,
                                              limits_.cores, restickifies(to, from)),
                                      clock_);
  std::vector<Nest> nests;
  if (mode_ != Mode::timing) {
    const Places read = places(*from.layout);
    for (const Nest& nest :
         lower_written(*to.layout, nest_of(to.size, to.strides, to.offset, from.strides, from.offset)))
      for (Nest& lowered : lower(read, 1, nest)) nests.push_back(std::move(lowered));
  }
  auto run = [this, nests = std::move(nests), target, source, from_type = from.type, to_type = to.type,
              to_block = to.held.block, from = from.held, info = info_of(from, shadow_ != nullptr)] {
    const Shadow* source_shadow = shadow_ ? Shadow::of(from.memory) : nullptr;
    write_into(to_block, [&] {
      for (const Nest& nest : nests) {
        if (source_shadow)
          check_written("a copy on the card", *source_shadow, *from.block, nest, source.element_bytes, *info);
        copy_nest(engine_, nest, target, source, device_cast(from_type, to_type));  // casts have a result for all
        if (shadow_) shadow_->wrote(*to_block, nest, 0, target.element_bytes);
      }
    });
  };
  const Transfer transfer{peer ? Transfer::Kind::from_peer : Transfer::Kind::on_card, elements * source.element_bytes,
                          elements * target.element_bytes};
  submit(stream, task_of(std::move(run), usage), {{to.held, writing(to)}, {from.held}}, interrupts, Wait::no,
         &transfer);
}

void Card::fill(const DeviceView& to, uint32_t element, int stream) {
  if (product(to.size) == 0) return;
  check(to);
  const uint64_t interrupts = check_contents({&to.held, to.whole ? 0ul : 1ul});
  const ElementPointer target{address(to.held), element_bytes(to)};
  const int64_t bytes = product(to.size) * target.element_bytes;
  const Usage usage = usage_of(move_of(0, bytes, limits_.cores, false), clock_);
  std::vector<Nest> nests;
  if (mode_ != Mode::timing)
    nests = lower_written(*to.layout, nest_of(to.size, to.strides, to.offset, Dims(to.size.size(), 0), 0));
  auto run = [this, nests = std::move(nests), target, element, block = to.held.block] {
    write_into(block, [&] {
      for (const Nest& nest : nests) {
        fill_nest(engine_, nest, target, &element);
        if (shadow_) shadow_->wrote(*block, nest, 0, target.element_bytes);
      }
    });
  };
  const Transfer transfer{Transfer::Kind::fill, 0, bytes};
  submit(stream, task_of(std::move(run), usage), {{to.held, writing(to)}}, interrupts, Wait::no, &transfer);
}

namespace {

// A view whose dimensions are joined where their elements follow each other as those of one dimension would.
DeviceView joined(const DeviceView& view) {
  DeviceView result = view;
  result.size.clear();
  result.strides.clear();
  for (size_t i = 0; i < view.size.size(); ++i) {
    if (view.size[i] == 1) continue;
    if (!result.size.empty() && result.strides.back() == view.size[i] * view.strides[i]) {
      result.size.back() *= view.size[i];
      result.strides.back() = view.strides[i];
    } else {
      result.size.push_back(view.size[i]);
      result.strides.push_back(view.strides[i]);
    }
  }
  return result;
}

// Calls body(box, where its first element is among the `count`) for views that are, one after the other, the elements
// [first, first + count) of a view in the order of the host.
void for_each_box(const DeviceView& view, int64_t first, int64_t count,
                  const std::function<void(const DeviceView&, int64_t)>& body, int64_t at = 0) {
  if (count <= 0) return;
  if (view.size.empty()) return body(view, at);
  DeviceView rest = view;
  rest.size.erase(rest.size.begin());
  rest.strides.erase(rest.strides.begin());
  const int64_t each = product(rest.size), stride = view.strides.front();
  const auto part_of = [&](int64_t row, int64_t from, int64_t elements) {
    rest.offset = view.offset + row * stride;
    for_each_box(rest, from, elements, body, at);
    at += elements;
    first += elements;
    count -= elements;
  };
  if (const int64_t before = first % each; before > 0) part_of(first / each, before, std::min(count, each - before));
  if (const int64_t rows = count / each; rows > 0) {
    DeviceView whole = view;
    whole.size.front() = rows;
    whole.offset = view.offset + first / each * stride;
    body(whole, at);
    at += rows * each;
    first += rows * each;
    count -= rows * each;
  }
  if (count > 0) part_of(first / each, 0, count);
}

}  // namespace

void Card::pack(std::byte* to, const DeviceView& from, int64_t first, int64_t count) {
  if (count == 0) return;  // a tensor without elements has no memory
  const ElementPointer source{address(from.held), element_bytes(from)};
  for_each_box(joined(from), first, count, [&](const DeviceView& box, int64_t at) {
    const ElementPointer target{to + at * source.element_bytes, source.element_bytes};
    const Nest dense = nest_of(box.size, contiguous_strides(box.size), 0, box.strides, box.offset);
    for (const Nest& nest : lower(places(*from.layout), 1, dense)) {
      if (shadow_)
        check_written("a collective", *shadow_, *from.held.block, nest, source.element_bytes, *info_of(from, true));
      copy_nest(engine_, nest, target, source, device_cast(from.type, from.type));
    }
  });
}

void Card::unpack(const DeviceView& to, const std::byte* from, int64_t first, int64_t count) {
  if (count == 0) return;
  const ElementPointer target{address(to.held), element_bytes(to)};
  for_each_box(joined(to), first, count, [&](const DeviceView& box, int64_t at) {
    const ElementPointer source{const_cast<std::byte*>(from) + at * target.element_bytes, target.element_bytes};
    const Nest dense = nest_of(box.size, box.strides, box.offset, contiguous_strides(box.size), 0);
    for (const Nest& nest : lower_written(*to.layout, dense)) {
      copy_nest(engine_, nest, target, source, device_cast(to.type, to.type));
      if (shadow_) shadow_->wrote(*to.held.block, nest, 0, target.element_bytes);
    }
  });
}

void Card::bytes_to_card(Held to, int64_t offset, const void* from, int64_t bytes, int stream) {
  check_range(to, offset, bytes);
  const bool whole = to.block && bytes == static_cast<int64_t>(to.block->bytes);
  const uint64_t interrupts = check_contents({&to, whole ? 0ul : 1ul});
  auto run = [=, this] {
    write_into(to.block, [&] { copy_bytes(address(to) + offset, static_cast<const std::byte*>(from), bytes); });
    if (shadow_) shadow_->wrote(*to.block, offset, bytes);
  };
  const auto effect = whole ? Memory::Effect::replaces : Memory::Effect::writes;
  const Usage usage = usage_of_transfer(bytes, Direction::from_host, clock_);
  const Transfer transfer{Transfer::Kind::to_card, 0, bytes};
  submit(stream, task_of(std::move(run), usage), {{to, effect}}, interrupts, Wait::yes, &transfer);
}

void Card::bytes_to_host(void* to, Held from, int64_t offset, int64_t bytes, int stream) {
  check_range(from, offset, bytes);
  if (mode_ == Mode::timing) std::memset(to, 0, bytes);
  const uint64_t interrupts = check_contents({&from, 1});
  auto run = [=, this] { copy_bytes(static_cast<std::byte*>(to), address(from) + offset, bytes); };
  const Usage usage = usage_of_transfer(bytes, Direction::to_host, clock_);
  const Transfer transfer{Transfer::Kind::to_host, bytes, 0};
  submit(stream, task_of(std::move(run), usage), {{from}}, interrupts, Wait::yes, &transfer);
}

}  // namespace spyre
