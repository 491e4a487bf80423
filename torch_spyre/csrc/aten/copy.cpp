#include "aten/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <sstream>

#include "aten/factories.h"
#include "runtime/calls/blocking.h"
#include "runtime/calls/logging.h"
#include "runtime/calls/origin.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/storage/allocator.h"
#include "runtime/storage/storage_view.h"
#include "runtime/storage/upload.h"

namespace torch_spyre {

namespace {

std::atomic<bool> warn_downcast{[] {
  const char* value = std::getenv("TORCH_SPYRE_DOWNCAST_WARN");
  return !value || std::string(value) != "0";
}()};

void log_copy(const at::Tensor& to, const at::Tensor& from, int stream) {
  if (logging_enabled())
    log_line("copy to " + log_text(to) + " from " + log_text(from) + " on stream " + std::to_string(stream));
}

spyre::HostView host_view(const at::Tensor& tensor, spyre::HostType type) {
  StoredView view = stored_view(tensor.scalar_type(), tensor.sizes(), tensor.strides(), 0);
  return {tensor.data_ptr(), type, std::move(view.size), std::move(view.strides),
          pinned_block(tensor.storage().data_ptr())};
}

void check_range(const at::Tensor& from) {
  const at::Tensor dense = from.contiguous();
  const auto* values = dense.const_data_ptr<int64_t>();
  const auto [low, high] = std::minmax_element(values, values + dense.numel());
  constexpr int64_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(*low >= kLow && *high <= kHigh, "int64 value ", *low < kLow ? *low : *high,
                    " does not fit the card, which keeps int64 in 32 bits. Nothing was copied.");
}

at::Tensor broadcast(const at::Tensor& from, const at::Tensor& to) {
  return from.sizes() == to.sizes() ? from : from.expand(to.sizes());
}

// The part of a storage's host bytes that a byte view shows.
at::Tensor shown_bytes(const at::Tensor& bytes, const at::Tensor& view) {
  return bytes.as_strided(view.sizes(), view.strides(), view.storage_offset());
}

// Real numbers as int64, converted as on the card: to the nearest value of 32 bits, NaN to the least.
at::Tensor saturated(const at::Tensor& reals) {
  const at::Tensor near = reals.to(at::kDouble).nan_to_num(-0x1p31);
  return near.clamp(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()).to(at::kLong);
}

void to_card(const at::Tensor& to, const at::Tensor& given, bool non_blocking) {
  const bool saturates = to.scalar_type() == at::kLong && at::isFloatingType(given.scalar_type());
  const at::Tensor converted = saturates ? saturated(given) : given.to(to.scalar_type());
  const at::Tensor values = converted.resolve_conj().resolve_neg();
  const at::Tensor from = broadcast(values, to);
  const auto device = to.device().index();
  const int stream = current_stream(device);
  log_copy(to, from, stream);
  if (to.scalar_type() == at::kLong) {
    if (warn_downcast)
      TORCH_WARN(
          "Backend Spyre does not support int64: values are kept in 32 bits on the card, those that do not fit "
          "are an error. TORCH_SPYRE_DOWNCAST_WARN=0 silences this.");
    check_range(values);
  }
  const bool asynchronous = non_blocking && values.is_same(given) && is_pinned(given.data_ptr());
  const auto wait = asynchronous ? spyre::Card::Wait::no : spyre::Card::Wait::yes;
  if (is_byte_view(to)) {
    change_bytes(to, [&](const at::Tensor& bytes) { bytes.copy_(from); });
    return;
  }
  const spyre::DeviceView target = device_view(to);
  upload(device, target, host_view(from, target.type), stream, wait);
}

void to_host(const at::Tensor& to, const at::Tensor& given, bool non_blocking) {
  const at::Tensor from = broadcast(given, to);
  const auto device = from.device().index();
  const int stream = current_stream(device);
  spyre::Card& source_card = card(device);
  log_copy(to, from, stream);
  const bool timing = source_card.mode() == spyre::Mode::timing;
  if (timing) {
    TORCH_WARN_ONCE("SPYRE_CARD=timing computes no values: what is read from the card is zeros");
  }
  if (is_byte_view(from)) {
    to.copy_(shown_bytes(read_bytes(storage_of(from)), from));
    return;
  }
  if (timing) {
    to.zero_();
    // The transfer still takes its modelled time; nothing is read or written.
    const spyre::DeviceView view = device_view(from);
    source_card.to_host({nullptr, view.type, view.size, view.strides, {}}, view, stream, spyre::Card::Wait::no);
    return;
  }
  const spyre::DeviceView source = device_view(from);
  if (to.scalar_type() != from.scalar_type() || to.is_conj() || to.is_neg()) {
    const at::Tensor same_type = at::empty(from.sizes(), to.options().dtype(from.scalar_type()));
    const spyre::HostView target = host_view(same_type, source.type);
    run_blocking([&] { source_card.to_host(target, source, stream, spyre::Card::Wait::yes); });
    to.copy_(same_type);
    return;
  }
  const bool asynchronous = non_blocking && is_pinned(to.data_ptr());
  const spyre::HostView target = host_view(to, source.type);
  run_blocking([&] {
    source_card.to_host(target, source, stream, asynchronous ? spyre::Card::Wait::no : spyre::Card::Wait::yes);
  });
}

void on_card(const at::Tensor& to, const at::Tensor& given) {
  at::Tensor from = broadcast(given, to);
  const auto device = to.device().index();
  const int stream = current_stream(device);
  log_copy(to, from, stream);
  if (is_byte_view(from) || is_byte_view(to)) {
    SpyreStorageImpl &target = storage_of(to), &source = storage_of(from);
    const bool whole = from.is_contiguous() && from.numel() == static_cast<int64_t>(source.nbytes()) &&
                       target.nbytes() == source.nbytes() && target.untyped && target.resizable() &&
                       source.base_offset == 0 && source.resizable();
    if (!whole) {
      const at::Tensor bytes = at::empty(from.sizes(), at::kByte);
      to_host(bytes, from, false);
      to_card(to, bytes, false);
      return;
    }
    // The copy takes the layout over, so that nothing goes through host bytes.
    auto fresh = make_storage(source.size, source.strides, source.dtype, device, &source.layout());
    run_blocking([&] { card(device).on_card(whole_view(*fresh), whole_view(source), stream); });
    c10::DataPtr data = std::move(fresh->_mutable_data_ptr_no_checks());
    target.adopt(source.nbytes(), std::move(data), std::move(*fresh));
    return;
  }
  const spyre::DeviceView target = device_view(to), source = device_view(from);
  if (from.device() == to.device()) {
    run_blocking([&] { card(device).on_card(target, source, stream); });
    return;
  }
  // The current streams of both cards wait for each other: the source must be complete before the copy begins, and must
  // not change before it ends.
  const int other_stream = current_stream(from.device().index());
  spyre::Engine& engine = spyre::Runtime::get().engine();
  spyre::Stream &here = card(device).stream(stream), &there = card(from.device().index()).stream(other_stream);
  spyre::Event ready, taken;
  engine.record(there, ready);
  engine.wait_event(here, ready);
  run_blocking([&] { card(device).on_card(target, source, stream); });
  engine.record(here, taken);
  engine.wait_event(there, taken);
}

// The memory of a tensor without the bits that make it the conjugate or the negative of its memory.
at::Tensor without_lazy_bits(const at::Tensor& tensor) {
  at::Tensor alias = tensor.alias();
  if (alias.is_complex()) alias._set_conj(false);
  alias._set_neg(false);
  return alias;
}

// Between complex and real dtypes, on the card.
void convert_complex(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_complex()) {
    complex_part(to, 0).copy_(from);
    complex_part(to, 1).zero_();
  } else if (to.scalar_type() == at::kBool) {
    to.copy_(complex_part(from, 0).ne(0).logical_or(complex_part(from, 1).ne(0)));
  } else {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
    to.copy_(complex_part(from, 0));
  }
}

}  // namespace

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  static const std::string* const kName = interned("aten::copy_");
  const OriginScope origin(kName);
  TORCH_CHECK(from.defined() && to.defined(), "copy needs two tensors");
  if (from.is_same(to)) return to;
  TORCH_CHECK(at::is_expandable_to(from.sizes(), to.sizes()), "The size of the source ", from.sizes(),
              " does not broadcast to the size of the destination ", to.sizes());
  if (to.numel() == 0) return to;
  at::assert_no_internal_overlap(to);
  at::assert_no_partial_overlap(to, from);
  const bool from_card = from.device().type() == kSpyre, to_this = to.device().type() == kSpyre;
  const auto bits = [](const at::Tensor& tensor) { return std::pair(tensor.is_conj(), tensor.is_neg()); };
  const std::pair none(false, false), given = from_card ? bits(from) : none, wanted = to_this ? bits(to) : none;
  if (given != none || wanted != none) {
    at::Tensor values = from_card ? without_lazy_bits(from) : from.resolve_conj().resolve_neg();
    if (given.first != wanted.first) values = at::conj_physical(values);
    if (given.second != wanted.second) values = at::neg(values);
    copy_from(values, to_this ? without_lazy_bits(to) : to, non_blocking);
  } else if (from_card && to_this && from.is_complex() != to.is_complex()) {
    convert_complex(to, from);
  } else if (from_card && to_this) {
    on_card(to, from);
  } else if (to_this) {
    to_card(to, from.device().is_cpu() ? from : from.cpu(), non_blocking);
  } else if (to.device().is_cpu()) {
    to_host(to, from, non_blocking);
  } else {
    to.copy_(from.cpu());
  }
  return to;
}

std::string log_text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.device() << ' ' << tensor.sizes() << ' ' << dtype_name(tensor.scalar_type());
  if (!tensor.is_contiguous() || tensor.storage_offset())
    out << " strides " << tensor.strides() << " offset " << tensor.storage_offset();
  if (tensor.device().type() == kSpyre) out << ' ' << storage_of(tensor).layout().str();
  return out.str();
}

void change_bytes(const at::Tensor& view, const std::function<void(const at::Tensor&)>& change) {
  SpyreStorageImpl& storage = storage_of(view);
  const bool whole = view.is_contiguous() && view.numel() == static_cast<int64_t>(storage.nbytes());
  const at::Tensor bytes = whole ? at::zeros(view.sizes(), at::kByte) : read_bytes(storage);
  change(shown_bytes(bytes, view));
  if (storage.dtype == at::kLong) check_range(bytes.view(at::kLong));
  write_bytes(storage, bytes);
}

at::Tensor complex_part(const at::Tensor& tensor, int64_t which) { return at::view_as_real(tensor).select(-1, which); }

bool downcast_warning() { return warn_downcast; }
void set_downcast_warning(bool on) { warn_downcast = on; }

namespace {

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  static const std::string* const kName = interned("aten::item");
  const OriginScope origin(kName);
  at::Tensor value = at::empty({}, at::TensorOptions().dtype(self.scalar_type()));
  to_host(value, self.reshape({}), false);
  return value.item();
}

// The card cannot stop a program, so the host reads the condition.
void assert_holds(const at::Tensor& condition, c10::string_view message) {
  if (card(condition.device().index()).mode() == spyre::Mode::timing) return;  // there are no values
  TORCH_CHECK(local_scalar(condition).toBool(), message);
}

void assert_true(const at::Tensor& condition) {
  assert_holds(condition, "Expected Tensor with single nonzero value, but got zero");
}

// Preserving the memory format preserves the device layout too, where the tensor is all of its storage.
at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  SpyreStorageImpl& storage = storage_of(self);
  const bool preserve = format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve;
  const bool whole = self.storage_offset() == 0 && storage.base_offset == 0 &&
                     self.sizes() == c10::IntArrayRef(storage.size) &&
                     self.strides() == c10::IntArrayRef(storage.strides);
  at::Tensor result =
      preserve && whole && !storage.untyped && !storage.has_default_layout()
          ? empty_with_layout(self.sizes(), self.strides(), self.scalar_type(), storage.layout(), self.device().index())
          : at::empty_like(self, self.options(), format.value_or(at::MemoryFormat::Preserve));
  copy_from(self, result, false);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("_assert_async", assert_true);
  m.impl("_assert_async.msg", assert_holds);
  m.impl("clone", clone);
}

// PyTorch would resolve both arguments into copies, and values written into such a copy would be lost.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace torch_spyre
